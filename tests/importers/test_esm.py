"""ESM beside `transformers`: masked tokens, frequencies of a file, the tokenizer, wrong files.

`test_relatives` compares encoders, heads and rows of two texts.
"""

import random

import numpy as np
import pytest
from helpers import origins, published
from helpers.published import torch, transformers

from keras_transformer.importers import esm

RESIDUES = [*"LAGVSERTIDPKQNFYMHWCXBUZO.-"]
PIECES = ["<cls>", "<pad>", "<eos>", "<unk>", *RESIDUES, "<null_1>", "<mask>"]
SETTINGS = {
    **{**origins.BERT, "vocab_size": len(PIECES), "pad_token_id": 1},
    **{"mask_token_id": 32, "token_dropout": True, "position_embedding_type": "rotary"},
}
pytestmark = pytest.mark.filterwarnings("ignore:.*contact_head.*which this model leaves out")
PREFIX = "esm.encoder.layer"
FREQUENCIES = f"{PREFIX}.*.attention.self.rotary_embeddings.inv_freq"  # as `transformers` 5 writes


def write(folder, **options):
    """Saves a random model of `transformers` with ESM's vocabulary; returns the model."""
    model = transformers.EsmForMaskedLM(transformers.EsmConfig(**{**SETTINGS, **options}))
    published.drawn(model).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES), "utf-8")
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("esm")
    write(path)
    return path


def compare(folder, model, ids):
    """Compares logits (B, S, V) of the words."""
    ours, _ = esm.load_task(folder)
    (order,) = esm.row_orders(folder)
    theirs = np.where(ids > 0, order[ids], 1)
    with torch.no_grad():
        expected = model(torch.from_numpy(theirs).long(), published.mask(ids)).logits.numpy()
    found = np.asarray(ours(ids))
    assert published.relative(found[ids > 0], expected[..., order][ids > 0]) <= 1e-5
    return found


def rows(*masked, length=23):
    """Returns ids (B, S) with as many masked tokens in each row. Each row is shorter by one."""
    draw, ids = np.random.default_rng(5), np.zeros((len(masked), length), "int32")
    for row, count in enumerate(masked):
        ids[row, : length - row] = draw.integers(4, 32, length - row)
        ids[row, 1 : 1 + count] = 32
        ids[row, 0], ids[row, length - 1 - row] = 2, 3
    return ids


@pytest.mark.parametrize("positions", ["rotary", "absolute"])
def test_masked_tokens_change_the_scale_of_their_row(positions, tmp_path):
    model = write(tmp_path, position_embedding_type=positions)
    found = compare(tmp_path, model, rows(0, 3, 7, 19))
    assert np.abs(found[0] - compare(tmp_path, model, rows(1, 3, 7, 19))[0]).max() > 1e-2


def test_a_row_of_padding_or_of_masks_gives_numbers(folder):
    with pytest.warns(UserWarning, match="contact_head.*which this model leaves out"):
        ours, _ = esm.load_task(folder)
    assert np.isfinite(ours(np.array([[0, 0, 0], [32, 32, 32]]))).all()


@pytest.mark.parametrize("blocks", ["*", "01"])
def test_rounded_frequencies_of_a_file_count(blocks, folder, tmp_path):
    """Published files store them in half precision, older ones once a block."""
    rounded = origins.tensors_of(folder)[FREQUENCIES].astype("float16").astype("float32") * 1.01
    names = [FREQUENCIES.replace("*", block) for block in blocks]
    unused = {"esm.embeddings.position_embeddings.weight": np.ones((29, 16), "float32")}
    tensors = {FREQUENCIES: None, **dict.fromkeys(names, rounded), **unused}
    origins.altered(folder, tmp_path, {"model.safetensors": tensors})
    model = transformers.EsmForMaskedLM.from_pretrained(tmp_path).eval()
    compare(tmp_path, model, rows(0, 2, length=199))


def test_the_tokenizer_equals_theirs_on_odd_lines(folder):
    (_, ours), (order,) = esm.load_task(folder), esm.row_orders(folder)
    theirs, draw = transformers.EsmTokenizer.from_pretrained(folder), random.Random(7)
    odd = ["é", "日本", "\u00a0", "\u3000", "\x1c", " ", "\t", *"abJj<>|\\[]^$"]
    for _ in range(1000):
        line = "".join(draw.choices([*PIECES, *RESIDUES, *odd], k=draw.randint(0, 25)))
        assert order[[*ours.encode(line), 3]].tolist() == theirs(line)["input_ids"], line
    assert ours.decode(ours.encode("LAG")) == theirs.decode(theirs("LAG")["input_ids"][1:-1])


REFUSED = {
    "config.json": [
        ({"model_type": "bert"}, r"model of bert, but this importer reads esm"),
        ({"is_folding_model": True}, "is_folding_model=True"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"pad_token_id": 0}, "pad_token_id=0"),
        ({"mask_token_id": 31}, "numbers '<mask>' as 32, but config.json says .*31"),
        ({"vocab_size": 31}, "numbers '<mask>' as 32, but config.json says .*31"),
        ({"emb_layer_norm_before": True}, "embeddings.LayerNorm.weight is missing"),
    ],
    "model.safetensors": [
        (
            {f"{PREFIX}.1.output.dense.weight": None},
            "layer.1.output.dense.weight is missing",
        ),
        ({"lm_head.dense.weight": None}, "transform.dense.weight is missing"),
        ({FREQUENCIES: np.ones(3, "float32")}, r"inv_freq has shape \(3,\), not \(4,\)"),
    ],
    "vocab.txt": [("\n".join([*PIECES, "J"]).encode(), r"1 pieces .* has no row: \['J'\]")],
}


@pytest.mark.parametrize(
    "file, change, message", [(file, *row) for file, rows in REFUSED.items() for row in rows]
)
def test_files_that_do_not_fit_are_refused(file, change, message, folder, tmp_path):
    with pytest.raises(ValueError, match=message):
        esm.load_task(origins.altered(folder, tmp_path, {file: change}))

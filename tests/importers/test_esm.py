"""ESM beside `transformers`: masked tokens, frequencies of a file, the tokenizer, wrong folders.

`test_relatives` compares encoders, heads and rows of two texts.
"""

import json
import random

import numpy as np
import pytest
from helpers import origins, published
from helpers.published import torch, transformers
from safetensors.numpy import load_file, save_file

from keras_transformer.export.runtime import Predictor
from keras_transformer.importers import esm
from keras_transformer.importers.__main__ import main

RESIDUES = [*"LAGVSERTIDPKQNFYMHWCXBUZO.-"]
PIECES = ["<cls>", "<pad>", "<eos>", "<unk>", *RESIDUES, "<null_1>", "<mask>"]
SETTINGS = {
    **{**origins.BERT, "vocab_size": len(PIECES), "pad_token_id": 1},
    **{"mask_token_id": 32, "token_dropout": True, "position_embedding_type": "rotary"},
}
pytestmark = pytest.mark.filterwarnings("ignore:.*contact_head.*which this model leaves out")
TAGS = {0: "helix", 1: "strand", 2: "coil"}
PREFIX = "esm.encoder.layer"
FREQUENCIES = f"{PREFIX}.*.attention.self.rotary_embeddings.inv_freq"  # as `transformers` 5 writes


def write(folder, kind="MaskedLM", **options):
    """Saves a random model of `transformers` with ESM's vocabulary; returns the model."""
    config = transformers.EsmConfig(**{**SETTINGS, **options})
    model = published.drawn(getattr(transformers, f"EsmFor{kind}")(config))
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES), "utf-8")
    return model


def changed(folder, **changes):
    """Writes a folder's tensors with others; `None` removes one."""
    tensors = {**load_file(folder / "model.safetensors"), **changes}
    tensors = {name: array for name, array in tensors.items() if array is not None}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


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


def test_a_row_of_padding_or_of_masks_gives_numbers(tmp_path):
    write(tmp_path)
    with pytest.warns(UserWarning, match="contact_head.*which this model leaves out"):
        ours, _ = esm.load_task(tmp_path)
    assert np.isfinite(ours(np.array([[0, 0, 0], [32, 32, 32]]))).all()


@pytest.mark.parametrize("blocks", ["*", "01"])
def test_rounded_frequencies_of_a_file_count(blocks, tmp_path):
    """Published files store them in half precision, older ones once a block."""
    write(tmp_path)
    rounded = load_file(tmp_path / "model.safetensors")[FREQUENCIES].astype("float16")
    rounded = rounded.astype("float32") * 1.01
    names = [FREQUENCIES.replace("*", block) for block in blocks]
    unused = {"esm.embeddings.position_embeddings.weight": np.ones((29, 16), "float32")}
    changed(tmp_path, **{FREQUENCIES: None, **dict.fromkeys(names, rounded), **unused})
    model = transformers.EsmForMaskedLM.from_pretrained(tmp_path).eval()
    compare(tmp_path, model, rows(0, 2, length=199))


def test_the_tokenizer_equals_theirs_on_odd_lines(tmp_path):
    write(tmp_path)
    _, ours = esm.load_task(tmp_path)
    (order,) = esm.row_orders(tmp_path)
    theirs, draw = transformers.EsmTokenizer.from_pretrained(tmp_path), random.Random(7)
    parts = [
        *PIECES,
        *RESIDUES,
        *"abJj<>|\\[]^$",
        "é",
        "日本",
        "\u00a0",
        "\u3000",
        "\x1c",
        " ",
        "\t",
    ]
    for _ in range(1000):
        line = "".join(draw.choice(parts) for _ in range(draw.randint(0, 25)))
        assert order[[*ours.encode(line), 3]].tolist() == theirs(line)["input_ids"], line
    assert ours.decode(ours.encode("LAG")) == theirs.decode(theirs("LAG")["input_ids"][1:-1])


def test_one_command_writes_a_file_of_tags(tmp_path):
    model = write(tmp_path, "TokenClassification", id2label=TAGS)
    out, protein = tmp_path / "out", "MKTAYIAKQR"
    assert main(["esm", str(tmp_path), str(out), "--export", "onnx", "--quiet"]) == 0
    (found,) = Predictor(out).predict([" ".join(protein)])
    ids = transformers.EsmTokenizer.from_pretrained(tmp_path)(protein, return_tensors="pt")
    with torch.no_grad():
        expected = model(**ids).logits[0, 1:-1].numpy()
    assert found.tags == tuple(TAGS[tag] for tag in expected.argmax(axis=-1))


WRONG = {
    "another family": ({"model_type": "bert"}, {}, r"model of bert, but this importer reads esm"),
    "folding": ({"is_folding_model": True}, {}, "is_folding_model=True"),
    "positions": (
        {"position_embedding_type": "relative_key"},
        {},
        "position_embedding_type is 'relative_key'",
    ),
    "padding": ({"pad_token_id": 0}, {}, "pad_token_id=0"),
    "mask": ({"mask_token_id": 31}, {}, "numbers '<mask>' as 32, but config.json says .*31"),
    "vocabulary": ({"vocab_size": 31}, {}, "numbers '<mask>' as 32, but config.json says .*31"),
    "missing": (
        {},
        {f"{PREFIX}.1.output.dense.weight": None},
        "layer.1.output.dense.weight is missing",
    ),
    "no norm": (
        {"emb_layer_norm_before": True},
        {},
        "embeddings.LayerNorm.weight is missing",
    ),
    "no head": ({}, {"lm_head.dense.weight": None}, "transform.dense.weight is missing"),
    "frequencies": (
        {},
        {FREQUENCIES: np.ones(3, "float32")},
        r"inv_freq has shape \(3,\), not \(4,\)",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_folder_is_refused(case, tmp_path):
    config, tensors, message = WRONG[case]
    write(tmp_path)
    changed(tmp_path, **tensors)
    read = json.loads((tmp_path / "config.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**read, **config}), "utf-8")
    with pytest.raises(ValueError, match=message):
        esm.load_task(tmp_path)


def test_a_tokenizer_with_more_tokens_is_refused(tmp_path):
    write(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join([*PIECES, "J"]), "utf-8")
    with pytest.raises(ValueError, match=r"1 pieces for which the model has no row: \['J'\]"):
        esm.load_task(tmp_path)

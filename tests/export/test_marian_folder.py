"""Export to a Marian folder: `transformers` writes the same tokens, and our importer reads it.

Shapes: B batch, S source length.
"""

import json
import sys

import numpy as np
import pytest
from helpers import exports, marian_folder, published
from helpers.published import torch, transformers
from helpers.tiers import quick

import keras_transformer as kt
from keras_transformer import export
from keras_transformer.export import ExportError, export_marian
from keras_transformer.export import marian_folder as exporter
from keras_transformer.importers import marian
from keras_transformer.padding import pad_rows

# Without sacremoses, `transformers` leaves text unchanged, as we do.
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses:UserWarning")

MAX_LENGTH = 12
WORDS = " ".join([*marian_folder.SOURCE, *marian_folder.TARGET, "½"]).split()
TEXTS = [" ".join(WORDS[i : i + 1 + i % 7]) for i in range(len(WORDS))]


@pytest.fixture(scope="module")
def tokenizers():
    """Two tokenizers with different vocabularies."""
    sizes = ((marian_folder.SOURCE, 61), (marian_folder.TARGET, 53))
    return [
        kt.Tokenizer.train(lines * 9, size, byte_fallback=False, hard_vocab_limit=False)
        for lines, size in sizes
    ]


def random_model(vocab_size, **options):
    return exports.tiny("translate", vocab_size, **{"d_model": 22, "d_ff": 19, **options})


def generated(folder, tokenizer, texts, beams, **options):
    """Returns ids and texts that `transformers` writes with a folder's model."""
    model = transformers.MarianMTModel.from_pretrained(folder).eval()
    if beams > 1:
        options["length_penalty"] = 0.0
    with torch.no_grad():
        ids = model.generate(
            **tokenizer(texts, return_tensors="pt", padding=True),
            max_length=None,
            max_new_tokens=MAX_LENGTH,
            num_beams=beams,
            do_sample=False,
            **options,
        )
    return ids[:, 1:], tokenizer.batch_decode(ids, skip_special_tokens=True)


def published_tokenizer(folder):
    return transformers.MarianTokenizer.from_pretrained(folder)


def searched(model, source, target, texts, beams):
    """Returns ids and texts of our searches."""
    search = kt.GreedySearch() if beams == 1 else kt.BeamSearch(beams, length_penalty=0.0)
    ids = search(model, pad_rows([[*source.encode(text), 3] for text in texts]), MAX_LENGTH).ids
    return published.found(ids), target.decode(ids.numpy()[:, 0])


VARIANTS = {
    "the paper's": {},
    "all biases, own output, two depths": {
        "num_layers": (1, 3),
        "use_bias": True,
        "output_bias": True,
        "tie_output": False,
        "activation": "gelu",
        "dtype": "mixed_bfloat16",
    },
    "two vocabularies": {"target_vocab_size": True, "activation": "silu", "output_bias": True},
}


@pytest.mark.full
@pytest.mark.parametrize("name", quick(VARIANTS, "two vocabularies"))
def test_transformers_writes_the_same_tokens(name, tokenizers, tmp_path):
    options = VARIANTS[name]
    source = target = tokenizers[0]
    if "target_vocab_size" in options:
        target = tokenizers[1]
        options = {**options, "target_vocab_size": target.vocab_size}
    model = random_model(source.vocab_size, **options)
    for weight in model.weights:  # unlike our searches, `transformers` gives padding no probability
        if weight.path.endswith("output_bias"):
            weight.assign(np.where(np.arange(target.vocab_size) > 0, weight, -100.0))
    other = None if target is source else target
    export_marian(model, tmp_path / "out", source, target_tokenizer=other, verbose=False)
    rows = exporter.marian_rows(target.vocab_size, other is None)
    order = [-1, *(rows.index(row) for row in range(1, target.vocab_size))]  # Marian's ids
    model, read = exporter.as_float32(model), published_tokenizer(tmp_path / "out")
    for beams in (1, 4) if "output_bias" in options else (1,):
        theirs, texts = generated(tmp_path / "out", read, TEXTS, beams)
        ours, expected = searched(model, source, target, TEXTS, beams)
        assert published.tokens(order, theirs, end=3) == ours
        known = [row for row, ids in enumerate(ours) if 1 not in ids]  # theirs omit unknown tokens
        assert [texts[row] for row in known] == [expected[row].strip() for row in known]
        assert len(set(map(tuple, ours))) > 1


def test_ids_without_a_piece_have_a_name():
    assert exporter.marian_ids([None] * 4 + ["a"], 6, shared=True) == {
        "</s>": 0,
        "<unk>": 1,
        "a": 2,
        "<5>": 3,
        "<pad>": 4,
    }


@pytest.fixture(scope="module")
def opus(tmp_path_factory):
    """A folder like OPUS-MT's, imported and exported again."""
    first, again = (tmp_path_factory.mktemp(name) for name in ("opus", "again"))
    marian_folder.write(first)
    model, (source, target) = marian.load(first)
    export_marian(model, again, source, target_tokenizer=target, verbose=False)
    return first, again, model, (source, target)


def vocabulary(folder):
    return json.loads((folder / "vocab.json").read_text("utf-8"))


@pytest.mark.full
def test_an_imported_model_survives_the_round_trip(opus):
    first, again, model, tokenizers = opus
    loaded, found = marian.load(again)
    assert found == tokenizers
    assert [v.path for v in loaded.weights] == [v.path for v in model.weights]
    for ours, theirs in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=ours.path)
    # The vocabulary is the first one, then the pieces that it lacks, then padding.
    before, order = vocabulary(first), list(vocabulary(again))
    assert order[: len(before) - 1] == list(before)[:-1] and order[-1] == "<pad>"
    assert len(order) == len(before) + 2


@pytest.mark.full
@pytest.mark.parametrize("beams", quick([1, 4], 4))
def test_transformers_writes_the_same_texts_with_both_folders(opus, beams):
    first, again, *_ = opus
    tokenizer, read = marian_folder.tokenizer(first), published_tokenizer(again)
    for text in marian_folder.TEXTS:  # pieces that the first vocabulary lacked have ids now
        one, two = tokenizer(text)["input_ids"], read(text)["input_ids"]
        assert len(one) == len(two) and (one == two or 1 in one)
    texts, pad = marian_folder.TEXTS, vocabulary(first)["<pad>"]
    _, expected = generated(first, tokenizer, texts, beams, bad_words_ids=[[pad]])
    assert generated(again, read, texts, beams)[1] == expected


@pytest.mark.full
def test_updates_of_lora_are_written(tokenizers, tmp_path):
    model = random_model(tokenizers[0].vocab_size)
    model.enable_lora(rank=2)
    for weight in model.weights:
        if weight.path.endswith("lora_kernel_b"):
            weight.assign(np.random.default_rng(5).normal(0, 0.3, weight.shape))
    export_marian(model, tmp_path / "out", tokenizers[0], verbose=False)  # compares the logits


# Bad input

UNFIT = [
    ({"positions": kt.LearnedPositionEncoding(13)}, "LearnedPositionEncoding that are not"),
    ({"positions": "rotary", "key_dim": 4}, "RotaryPositionEncoding inside of attention"),
    ({"positions": kt.SinusoidalPositionEncoding(base=100.0)}, "not the paper's sinusoids"),
    (
        {"norm_first": True, "embedding_norm": True, "epsilon": 1e-6},
        "norm_first=True; embedding_norm=True; epsilon=1e-06",
    ),
    ({"recurrent_decoder": True}, "recurrent_decoder=True"),
    ({"activation": "softplus"}, "activation='softplus'"),
]
REFUSED = [  # options of the model, tokenizers' numbers, arguments, message
    *((o, (0,), {}, f"A Marian folder cannot hold this model.*{message}") for o, message in UNFIT),
    *(({}, (0,), {"max_length": n}, "max_length must") for n in (0, -1, 1, 2.5, True)),
    ({}, (), {}, "pass tokenizer, a Tokenizer"),
    ({"vocab_size": 23}, (0,), {}, r"has \d\d ids, but the model"),
    ({}, (0, 1), {}, "two tokenizers have different pieces for"),
]


@pytest.mark.parametrize("sizes, numbers, options, message", REFUSED)
def test_what_the_folder_cannot_hold_is_refused(
    sizes, numbers, options, message, tokenizers, tmp_path
):
    model = random_model(**{"vocab_size": 70, **sizes})
    source, target = [*(tokenizers[number] for number in numbers), None, None][:2]
    with pytest.raises((TypeError, ValueError), match=message):
        export_marian(model, tmp_path / "out", source, target_tokenizer=target, **options)
    assert not any(tmp_path.iterdir())


@pytest.mark.full
def test_a_failed_export_leaves_no_files(tokenizers, tmp_path, monkeypatch):
    model, out = random_model(70), tmp_path / "out"
    other = random_model(70, num_layers=1)
    monkeypatch.setattr(marian, "load", lambda folder: (other, tokenizers[0]))
    with pytest.raises(ExportError, match="Parity of the outputs: they differ"):
        export_marian(model, out, tokenizers[0], verbose=False)
    monkeypatch.setattr(marian, "load", lambda folder: (model, tokenizers[1]))
    with pytest.raises(ExportError, match="tokenizer that was read back gives other ids"):
        export_marian(model, out, tokenizers[0], verbose=False)
    assert not any(tmp_path.iterdir())
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    monkeypatch.delitem(sys.modules, exporter.__name__)
    with pytest.raises(ImportError, match=r"keras-transformer-onnx\[train,export\]"):
        _ = export.export_marian

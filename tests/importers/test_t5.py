"""T5's tokenizers, ByT5 from a folder to a file, and tokenizers that are refused.

`test_origins` compares models and searches with `transformers`, and trains them.
"""

import random

import pytest
import sentencepiece
from helpers import origins, published
from helpers.bergamot_model import vocabulary
from helpers.published import torch, transformers

import keras_transformer as kt
from keras_transformer.export.runtime import Translator
from keras_transformer.importers import t5
from keras_transformer.importers.__main__ import main

TEXTS = ["a red hat .", "the dog runs over the hill", "ein mann fährt fahrrad .", "two words , and"]
ODD = [
    *("red", "hat", " ", "  ", "\t", "\n", "\u3000", "\u00a0", "ﬁ", "Ａ", "é", "e\u0301", "😀"),
    *("👩\u200d👩", "\u200b", "\ufeff", "\x00", "▁", "Straße", ".", " dog", "1½", "日本", "שלום"),
]
SPECIAL = ["<extra_id_0>", " <extra_id_7> ", "</s>", "<pad>", "<unk>"]  # of `transformers`


def odd_lines(*more):
    draw = random.Random(0)
    return ["".join(draw.choices([*ODD, *more], k=draw.randrange(9))) for _ in range(1000)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a folder with a model and `spiece.model`."""
    folder = tmp_path_factory.mktemp("t5")
    model = vocabulary(TEXTS * 40, 70, pad_id=0, eos_id=1, unk_id=2)
    (folder / "spiece.model").write_bytes(model)
    origins.t5_model(vocab_size=180).save_pretrained(folder)
    return folder


def ids_of(folder):
    """Returns a function of a line: the origin's ids by our tokenizer."""
    _, tokenizer = t5.load(folder)
    (order,) = t5.row_orders(folder)
    return lambda line: [int(order[id]) for id in tokenizer.encode(line)]


def test_tokenizer_json_gives_the_ids_of_transformers(folder, tmp_path):
    theirs = transformers.T5Tokenizer.from_pretrained(folder)
    theirs.save_pretrained(origins.altered(folder, tmp_path, {}))
    encode = ids_of(tmp_path)
    for line in odd_lines(*SPECIAL):
        assert encode(line) == theirs.encode(line, add_special_tokens=False), repr(line)


def test_spiece_model_gives_the_ids_of_sentencepiece_and_sentinels(folder):
    encode = ids_of(folder)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
    for line in odd_lines():
        assert encode(line) == processor.encode(line), repr(line)
    theirs = transformers.T5Tokenizer.from_pretrained(folder)
    for line in [*TEXTS, "the <extra_id_0> runs <extra_id_99> over", "<extra_id_3> hat"]:
        assert encode(line) == theirs.encode(line, add_special_tokens=False), line
    assert 100 + processor.get_piece_size() - 1 in encode("<extra_id_0>")


@pytest.mark.full
@pytest.mark.parametrize("kind", ["T5", "MT5"])
def test_byt5_needs_no_file_of_a_tokenizer(kind, tmp_path):
    model = origins.t5_model(kind, vocab_size=384, tokenizer_class="ByT5Tokenizer")
    model.save_pretrained(tmp_path / "in")
    importer = getattr(kt.importers, kind.lower())
    _, tokenizer = importer.load(tmp_path / "in")
    (order,), theirs = importer.row_orders(tmp_path / "in"), transformers.ByT5Tokenizer()
    for line in odd_lines("<extra_id_0>", "<extra_id_124>"):
        ids = tokenizer.encode(line)
        assert [int(order[id]) for id in ids] == theirs.encode(line, add_special_tokens=False)
        assert tokenizer.decode(ids) == line
    command = [kind.lower(), str(tmp_path / "in"), str(tmp_path / "out"), "--export", "onnx"]
    assert main([*command, "--quiet", "--max-length", "24"]) == 0
    options = {"max_new_tokens": 24, "do_sample": False, "bad_words_ids": [[0], [2]]}
    with torch.no_grad():
        found = model.generate(torch.tensor([theirs.encode("né 😀")]), **options)
    (expected,) = published.tokens(order, found[:, 1:], end=3)
    text = tokenizer.decode(expected).replace("\0", "\ufffd")  # as the runtime writes it
    assert Translator(tmp_path / "out").translate(["né 😀"]) == [text]


@pytest.mark.parametrize(
    "files, message",
    [
        (
            {"config.json": {"eos_token_id": 5}},
            "spiece.model numbers '</s>' as 1, but config.json says eos_token_id=5",
        ),
        ({"spiece.model": None}, "neither tokenizer.json nor spiece.model"),
    ],
)
def test_a_tokenizer_that_disagrees_is_refused(files, message, folder, tmp_path):
    with pytest.raises((OSError, ValueError), match=message):
        t5.load(origins.altered(folder, tmp_path, files))

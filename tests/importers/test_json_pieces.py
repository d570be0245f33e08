"""Tokenizers of the `tokenizers` library, against `transformers` and in an export."""

import json

import numpy as np
import pytest
import tensorflow as tf
from helpers import published
from helpers.origins import BERT, alter, altered, gpt2_model
from helpers.published import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from keras_transformer import classification_batches, export, tagging_batches
from keras_transformer.data.pairs import piece_span
from keras_transformer.export.runtime import Predictor
from keras_transformer.importers import bert, gpt2, pieces
from keras_transformer.text.json_tokenizer import JsonTokenizer, load_tokenizer
from keras_transformer.text.tokenizer import Tokenizer as Pieces

PIECES = ["[PAD]", "the", "##ing", "cat", "sleep", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##s"]
PIECES += [".", "!", "a", "##t"]
TEXTS = ["The cats sleeping.", "uncat [MASK] sleep", "Ça sleep ½!", "a  at\tthe", "catings"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Writes a BERT folder with `vocab.txt` and random weights."""
    folder = tmp_path_factory.mktemp("bert")
    config = transformers.BertConfig(**{**BERT, "vocab_size": len(PIECES)})
    published.drawn(transformers.BertModel(config, add_pooling_layer=False)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", "utf-8")
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder):
    return bert.load(folder)[1]


def test_rows_equal_transformers(folder, tokenizer):
    theirs = transformers.BertTokenizer.from_pretrained(folder)
    (order,) = bert.row_orders(folder)
    assert tokenizer.vocab_size == len(PIECES)
    for text, ours in zip(TEXTS, tokenizer.encode(TEXTS), strict=True):
        assert [int(order[i]) for i in [*ours, 3]] == theirs(text)["input_ids"]
        assert tokenizer.encode(text) == ours
        spans = tokenizer.encode_with_spans(text)
        assert spans[0] == ours and spans[1][0] == (0, 0)
    rows = tokenizer.encode(TEXTS[:2])
    assert tokenizer.decode([[*row, 3, 4] for row in rows])[0] == "the cats sleeping."


def test_tokenizer_json_is_preferred_and_must_fit_the_model(folder, tokenizer, tmp_path):
    known = pieces.word_pieces(folder, bert.read_vocabulary(folder))
    altered(folder, tmp_path, {"tokenizer.json": json.dumps(known).encode()})
    assert bert.load(tmp_path)[1] == tokenizer
    known["model"]["vocab"]["more"] = 99
    alter(tmp_path, {"tokenizer.json": json.dumps(known).encode()})
    with pytest.raises(ValueError, match=r"1 pieces for which the model has no row: \['more'\]"):
        bert.load(tmp_path)


FLAGS = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
CAT = {"content": "<Cat>", **FLAGS, "special": True}
ADDED = {"added_tokens.json": {"<Cat>": 13, "sleeping": 14}}
ADDED["vocab.txt"] = "\n".join(PIECES[:-2]).encode() + b"\n"


@pytest.mark.parametrize(
    "settings, ids",
    [
        ({}, [6, 1, 13, 14, 13, 7]),
        ({"added_tokens_decoder": {"13": CAT}}, [6, 1, 13, 4, 2, 5, 3, 5, 7]),
    ],
)
def test_added_tokens_beside_the_vocabulary_are_read(settings, ids, folder, tmp_path):
    altered(folder, tmp_path, {**ADDED, "tokenizer_config.json": settings})
    text, (order,) = "the<Cat>Sleeping <cat>", bert.row_orders(tmp_path)
    assert order[[*bert.load(tmp_path)[1].encode(text), 3]].tolist() == ids
    assert transformers.BertTokenizer.from_pretrained(tmp_path)(text)["input_ids"] == ids


def test_added_tokens_without_ids_are_refused(folder, tmp_path):
    settings = {"added_tokens_decoder": ["a"]}
    with pytest.raises(ValueError, match="added_tokens_decoder in .* must be an object from ids"):
        bert.load(altered(folder, tmp_path, {"tokenizer_config.json": settings}))


@pytest.mark.parametrize("separate", [True, False])
def test_chinese_characters_are_words_if_the_folder_says_so(folder, tmp_path, separate):
    settings = json.dumps({"tokenize_chinese_chars": separate})
    (tmp_path / "tokenizer_config.json").write_text(settings, "utf-8")
    known = pieces.word_pieces(tmp_path, bert.read_vocabulary(folder))
    assert known["normalizer"]["handle_chinese_chars"] == separate


def test_load_tokenizer_distinguishes_json_and_sentencepiece(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.model")
    assert load_tokenizer(tmp_path / "tokenizer.model") == tokenizer
    other = Pieces.train(["a red hat"], 300, hard_vocab_limit=False)
    other.save(tmp_path / "other.model")
    assert load_tokenizer(tmp_path / "other.model") == other
    with pytest.raises(ValueError, match="not JSON of the package tokenizers"):
        JsonTokenizer("{}")


def byte_pairs(pieces, merges=()):
    made = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [*merges]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def test_a_language_model_has_byte_pairs(tmp_path):
    made = byte_pairs(["a", "b", "ab", "\u0120"], [("a", "b")])
    made.add_special_tokens(["<|endoftext|>"])
    gpt2_model(vocab_size=5, bos_token_id=4, eos_token_id=4).save_pretrained(tmp_path)
    made.save(str(tmp_path / "tokenizer.json"))
    (model, tokenizer), (order,) = gpt2.load(tmp_path), gpt2.row_orders(tmp_path)
    assert order[tokenizer.encode("ab ba")].tolist() == made.encode("ab ba").ids
    assert tokenizer.decode([2, *tokenizer.encode("ab ba"), 3, 5]) == "ab ba"
    assert tokenizer.encode("<|endoftext|>") == [3]
    assert model.vocab_size >= tokenizer.vocab_size


def test_spans_and_decoding_are_as_with_sentencepiece():
    pieces = ["<pad>", "<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer, text = JsonTokenizer(byte_pairs(pieces).to_str()), "a \U0001f600\u00e9"
    ids, spans = tokenizer.encode_with_spans(text)
    # The last byte of a character covers it.
    assert spans == [(0, 1), (1, 2), *[(2, 2)] * 3, (2, 3), (3, 3), (3, 4)]
    assert piece_span(tokenizer, text, (2, 3)) == (2, 5)
    assert tokenizer.decode(tf.constant(ids)) == text
    assert tokenizer.decode(tf.constant([ids, ids])) == [text, text]
    assert tokenizer.decode(np.zeros((0, 5), int)) == []
    for number in (-1, len(pieces)):
        with pytest.raises(ValueError, match=f"id {number} is not within this vocabulary of 260"):
            tokenizer.decode([5, number])


@pytest.mark.full
def test_an_exported_encoder_reads_text(folder, tokenizer, tmp_path):
    head, vectors = export.FeatureExtraction(), bert.load_sentence_encoder(folder)
    export.export_onnx(vectors, tmp_path / "out", tokenizer, head=head, verbose=False)
    results = Predictor(tmp_path / "out").predict(TEXTS)
    for text, result in zip(TEXTS, results, strict=True):
        expected = vectors(np.array([[*tokenizer.encode(text), 3]], "int32"))[0]
        np.testing.assert_allclose(result.vector, expected, atol=1e-5)


def test_drawn_segmentations_need_sentencepiece(tokenizer):
    for batches, texts, labels in (
        (classification_batches, ["the cat"], [0]),
        (tagging_batches, [["the", "cat"]], [["A", "B"]]),
    ):
        with pytest.raises(ValueError, match="sampling_alpha needs a `Tokenizer`"):
            batches(texts, labels, tokenizer, sampling_alpha=0.1)

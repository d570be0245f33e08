"""Serving of strings: `Translator`, SavedModel and text model agree, on odd text too.

The model has two vocabularies, so each tokenizer must be used on its side.
"""

import numpy as np
import pytest
import tensorflow as tf
from helpers.exports import LINES, MAX_LENGTH, VOCAB, tiny, tokenizer

import keras_transformer as kt
from keras_transformer.export import export_onnx, export_saved_model, text_graph
from keras_transformer.export.artefact import signature
from keras_transformer.export.proof import run_exported
from keras_transformer.export.runtime import Translator
from keras_transformer.padding import pad_rows
from keras_transformer.special_ids import END_ID, UNKNOWN_ID

pytest.importorskip("tensorflow_text", reason="strings inside graphs need tensorflow-text")
pytestmark = pytest.mark.usefixtures("forked_proofs")

SEARCH = kt.BeamSearch(5)
TARGETS = ["un homme au chapeau rouge .", "deux mots", "le chien court", "à vélo"]
TARGET_VOCAB = 283
BEYOND = 2  # ids that the model has and the tokenizer lacks
WHITE = ["", " \t", "\u3000", "\x0b", "\u00a0", "\x1c", " \x85\u2028\u1680", "\0", "\0a", " \0a"]
TEXT = ["two words", "a", "a\0b", "\u200b", "\ufeff x", "ein mann fährt 😀", *LINES]
LIKELY = [2.5, 3.0, 3.0]
OPTIONS = {"max_length": MAX_LENGTH, "verbose": False}


@pytest.fixture(scope="module")
def target():
    return kt.Tokenizer.train(TARGETS, vocab_size=TARGET_VOCAB)


@pytest.fixture(scope="module")
def nul_id(target):
    return target.encode("\0")[-1]


@pytest.fixture(scope="module")
def model(nul_id):
    """A model that often writes NUL and ids that the tokenizer lacks."""
    model = tiny(num_layers=1, target_vocab_size=TARGET_VOCAB + BEYOND, output_bias=True)
    bias = model.decoder_stack.embedding.bias
    likely = np.zeros(bias.shape, "float32")
    likely[[nul_id, TARGET_VOCAB, TARGET_VOCAB + BEYOND - 1]] = LIKELY
    bias.assign(likely)
    return model


@pytest.fixture(scope="module")
def onnx_folder(model, target, tmp_path_factory):
    path = tmp_path_factory.mktemp("servings") / "onnx"
    export_onnx(model, path, tokenizer(), SEARCH, target_tokenizer=target, text=True, **OPTIONS)
    return path


@pytest.fixture(scope="module")
def translate(model, target, tmp_path_factory):
    """The signature of the SavedModel."""
    path = tmp_path_factory.mktemp("servings") / "saved_model"
    export_saved_model(model, path, tokenizer(), SEARCH, target_tokenizer=target, **OPTIONS)
    loaded = tf.saved_model.load(str(path))
    return lambda texts: loaded.signatures["translate"](text=tf.constant(texts, tf.string))


@pytest.fixture(scope="module")
def text_model(onnx_folder):
    """Texts and scores, each (B, W), of the text model for WHITE + TEXT."""
    case = {"text": np.array(WHITE + TEXT)}
    path = onnx_folder / signature.TEXT_MODEL_FILE
    (found,), _ = run_exported([path], [case], extensions=True)
    return found["texts"].tolist(), found["scores"]


def test_blank_matches_the_white_space_of_python():
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
    blank = tf.strings.regex_full_match(every, signature.BLANK).numpy()
    assert [c for c, is_blank in zip(every, blank, strict=True) if is_blank] == [
        c for c in every if c.isspace()
    ]


def test_the_byte_table_follows_utf_8():
    expected = {
        0x41: (0, 0x80, 0xBF),
        0xC3: (1, 0x80, 0xBF),
        0xE0: (2, 0xA0, 0xBF),
        0xF4: (3, 0x80, 0x8F),
        0xC0: (0, 0x80, 0xBF),  # would be overlong: never the first byte
    }
    found = {byte: tuple(row) for byte, *row in text_graph.byte_table(tokenizer(), VOCAB)}
    assert expected.items() <= found.items()
    special = text_graph.pieces(tokenizer(), VOCAB)[: END_ID + 1]
    assert special == [b"", " \u2047 ".encode(), b"", b""]


@pytest.mark.full
def test_saved_model_and_text_model_agree(translate, text_model):
    found = translate(WHITE + TEXT)
    texts = [[text.decode() for text in row] for row in found["texts"].numpy()]
    assert texts == text_model[0]
    np.testing.assert_allclose(found["scores"], text_model[1], rtol=1e-5)


@pytest.mark.full
def test_no_texts_have_no_translations(translate, onnx_folder):
    found = translate([])
    assert found["texts"].shape == found["scores"].shape == (0, SEARCH.beam_width)
    assert Translator(onnx_folder, threads=1).n_best([]) == []


@pytest.mark.full
def test_keras_tokens_decode_to_the_same_strings(model, target, nul_id, text_model):
    ids = [[*row, END_ID] for row in tokenizer().encode([t.partition("\0")[0] for t in TEXT])]
    found = SEARCH(model, pad_rows(ids), MAX_LENGTH).ids.numpy()
    assert (found == nul_id).any() and (found >= TARGET_VOCAB).any()
    known = np.where(found < TARGET_VOCAB, found, UNKNOWN_ID)
    texts = [[t.replace("\0", "\ufffd") for t in target.decode(row)] for row in known]
    assert texts == text_model[0][len(WHITE) :]


def test_translator_agrees_except_for_ids_that_the_tokenizer_lacks(onnx_folder, target, text_model):
    """`Translator` may report such ids as errors."""
    assert kt.Tokenizer.load(onnx_folder / "target_tokenizer.model") == target
    results = Translator(onnx_folder, threads=1).n_best(WHITE + TEXT)
    translated = 0
    for result, texts, scores in zip(results, *text_model, strict=True):
        if result.error is None:
            exists = np.isfinite(scores)
            kept = [texts.index(text) for text in dict.fromkeys(np.array(texts)[exists])]
            assert result.texts == tuple(texts[i] for i in kept)
            np.testing.assert_allclose(result.scores, scores[kept], rtol=1e-5)
            translated += any(result.texts)
        else:
            assert "is not within this vocabulary" in result.error
            assert any(" \u2047 " in text for text in texts)
    assert translated


@pytest.mark.parametrize("export", [export_onnx, export_saved_model])
def test_tokenizers_must_fit_their_sides(model, target, export, tmp_path):
    for source, other, message in (
        (tokenizer(), None, "Pass target_tokenizer too"),
        (target, tokenizer(), "tokenizer of the target has 286 ids, but .* writes 285"),
    ):
        with pytest.raises(ValueError, match=message):
            export(model, tmp_path / "x", source, SEARCH, target_tokenizer=other)
    assert not (tmp_path / "x").exists()

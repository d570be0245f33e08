"""Strings in, strings out: `Translator`, SavedModel and text model agree, on odd text too."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from support.exports import MAX_LENGTH, VOCAB, tiny, tokenizer

from keras_transformer.export import export_onnx, export_saved_model, verify
from keras_transformer.export.artefact import signature
from keras_transformer.export.runtime import Translator
from keras_transformer.search import BeamSearch
from keras_transformer.special_ids import END_ID, UNKNOWN_ID

pytest.importorskip("tensorflow_text", reason="strings inside graphs need tensorflow-text")
pytestmark = pytest.mark.usefixtures("forked_proofs")

SEARCH = BeamSearch(5)
NUL_ID = tokenizer().encode("\0")[-1]
BEYOND = 7  # ids that the model has and the tokenizer lacks
WHITE = ["", " \t", "\u3000", "\x0b", "\u00a0", "\x1c", " \x85\u2028\u1680", "\0", "\0a", " \0a"]
TEXT = ["two words", "a", "a\0b", "\u200b", "\ufeff x", "ein mann fährt 😀"]
NOTHING = [0.0, *[-np.inf] * (SEARCH.beam_width - 1)]


@pytest.fixture(scope="module")
def model():
    """It likes to write NUL and ids that the tokenizer lacks."""
    model = tiny(num_layers=1, vocab_size=VOCAB + BEYOND)
    embeddings = model.decoder_stack.embedding.weights[0]
    array = keras.ops.convert_to_numpy(embeddings).copy()
    array[NUL_ID] *= 2
    array[[VOCAB, VOCAB + BEYOND - 1]] = 0.9 * array[NUL_ID]  # nearly as likely
    embeddings.assign(array)
    return model


@pytest.fixture(scope="module")
def onnx_folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("servings") / "onnx"
    options = {"max_length": MAX_LENGTH, "text": True, "verbose": False}
    export_onnx(model, path, tokenizer(), SEARCH, **options)
    return path


@pytest.fixture(scope="module")
def saved_model(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("servings") / "saved_model"
    options = {"max_length": MAX_LENGTH, "verbose": False}
    export_saved_model(model, path, tokenizer(), SEARCH, **options)
    return path


@pytest.fixture(scope="module")
def text_model(onnx_folder):
    """Texts and scores, each (B, W), that the text model gives for WHITE + TEXT."""
    case = {"text": np.array(WHITE + TEXT)}
    (found,) = verify.probe(onnx_folder / signature.TEXT_MODEL_FILE, [case], extensions=True)
    return found["texts"].tolist(), found["scores"]


def test_blank_is_what_python_takes_for_white_space():
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF]
    blank = tf.strings.regex_full_match(every, signature.BLANK).numpy()
    assert [c for c, is_blank in zip(every, blank, strict=True) if is_blank] == [
        c for c in every if c.isspace()
    ]


def test_blank_text_has_one_empty_hypothesis(text_model):
    texts, scores = text_model
    count = len(WHITE)
    assert texts[:count] == [[""] * SEARCH.beam_width] * count
    assert scores[:count].tolist() == [NOTHING] * count
    assert all(map(any, texts[count:])) and np.isfinite(scores[count:]).all()
    assert texts[count + 1] == texts[count + 2]  # text ends at NUL


def test_saved_model_and_text_model_agree(saved_model, text_model):
    translate = tf.saved_model.load(str(saved_model)).signatures["translate"]
    found = translate(text=tf.constant(WHITE + TEXT))
    texts = [[text.decode() for text in row] for row in found["texts"].numpy()]
    assert texts == text_model[0]
    np.testing.assert_allclose(found["scores"], text_model[1], rtol=1e-5)


def test_no_texts_have_no_translations(saved_model, onnx_folder):
    translate = tf.saved_model.load(str(saved_model)).signatures["translate"]
    found = translate(text=tf.constant([], tf.string))
    assert found["texts"].shape == found["scores"].shape == (0, SEARCH.beam_width)
    assert Translator(onnx_folder, threads=1).n_best([]) == []


def test_keras_tokens_become_the_same_strings(model, text_model):
    ids = [[*row, END_ID] for row in tokenizer().encode([t.partition("\0")[0] for t in TEXT])]
    found = SEARCH(model, keras.utils.pad_sequences(ids, padding="post"), MAX_LENGTH).ids.numpy()
    assert (found == NUL_ID).any() and (found >= VOCAB).any()
    known = np.where(found < VOCAB, found, UNKNOWN_ID)
    texts = [[t.replace("\0", "\ufffd") for t in tokenizer().decode(row)] for row in known]
    assert texts == text_model[0][len(WHITE) :]


def test_translator_agrees_but_for_ids_that_the_tokenizer_lacks(onnx_folder, text_model):
    """Those it can tell as an error."""
    results = Translator(onnx_folder, threads=1).n_best(WHITE + TEXT)
    translated = 0
    for result, texts, scores in zip(results, *text_model, strict=True):
        if result.error is None:
            there = np.isfinite(scores)
            assert result.texts == tuple(np.array(texts)[there])
            np.testing.assert_allclose(result.scores, scores[there], rtol=1e-5)
            translated += any(result.texts)
        else:
            assert "is not within this vocabulary" in result.error
            assert any(" \u2047 " in text for text in texts)
    assert translated

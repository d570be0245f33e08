"""Vocabularies apart: each tokenizer is used on its own side, in every artefact."""

import numpy as np
import pytest
import tensorflow as tf
from support import exports

import keras_transformer as kt
from keras_transformer.export import export_onnx, export_saved_model
from keras_transformer.export.runtime import Translator

pytest.importorskip("tensorflow_text", reason="strings inside graphs need tensorflow-text")
pytestmark = pytest.mark.usefixtures("forked_proofs")
TARGETS = ["un homme au chapeau rouge .", "deux mots", "le chien court", "à vélo"]
TARGET_VOCAB = 283
SEARCH, MAX_LENGTH = kt.BeamSearch(2), 5


@pytest.fixture(scope="module")
def target_tokenizer():
    return kt.Tokenizer.train(TARGETS, vocab_size=TARGET_VOCAB)


@pytest.fixture(scope="module")
def model():
    return exports.tiny(num_layers=1, target_vocab_size=TARGET_VOCAB)


@pytest.fixture(scope="module")
def expected(model, target_tokenizer):
    """By hand: the source's tokenizer, the search, the target's tokenizer."""
    ids = [[*row, 3] for row in exports.tokenizer().encode(exports.LINES)]
    padded = np.zeros((len(ids), max(map(len, ids))), "int32")
    for row, tokens in zip(padded, ids, strict=True):
        row[: len(tokens)] = tokens
    return [target_tokenizer.decode(row) for row in SEARCH(model, padded, MAX_LENGTH).ids.numpy()]


def test_saved_model(model, target_tokenizer, expected, tmp_path):
    export_saved_model(
        model, tmp_path / "saved", exports.tokenizer(), SEARCH,
        target_tokenizer=target_tokenizer, max_length=MAX_LENGTH, verbose=False,
    )  # fmt: skip
    translate = tf.saved_model.load(str(tmp_path / "saved")).signatures["translate"]
    texts = translate(text=tf.constant(exports.LINES))["texts"].numpy()
    assert [[text.decode() for text in row] for row in texts] == expected


def test_onnx_folder(model, target_tokenizer, expected, tmp_path):
    manifest = export_onnx(
        model, tmp_path / "onnx", exports.tokenizer(), SEARCH, text=True,
        target_tokenizer=target_tokenizer, max_length=MAX_LENGTH, verbose=False,
    )  # fmt: skip  # the text model is proven in a process of its own
    assert {"tokenizer.model", "target_tokenizer.model", "text_model.onnx"} < set(manifest["files"])
    held = kt.Tokenizer.load(tmp_path / "onnx/target_tokenizer.model")
    assert held == target_tokenizer
    found = Translator(tmp_path / "onnx").n_best(exports.LINES)
    assert [list(translation.texts) for translation in found] == expected


@pytest.mark.parametrize("export", [export_onnx, export_saved_model])
def test_one_tokenizer_for_two_vocabularies_is_refused(model, export, tmp_path):
    with pytest.raises(ValueError, match="Pass target_tokenizer too"):
        export(model, tmp_path / "x", exports.tokenizer(), SEARCH)
    assert not (tmp_path / "x").exists()


def test_tokenizers_must_fit_their_sides(model, target_tokenizer, tmp_path):
    with pytest.raises(ValueError, match="tokenizer of the target has 286 ids, but .* writes 283"):
        export_onnx(
            model, tmp_path / "x", target_tokenizer, SEARCH, target_tokenizer=exports.tokenizer()
        )
    with pytest.raises(ValueError, match="target_tokenizer is for what a search writes"):
        export_onnx(model, tmp_path / "x", target_tokenizer=target_tokenizer)

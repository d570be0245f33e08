"""Exports of custom encoders: named inputs, checks of the tokenizer, and Keras' tokens."""

import keras
import pytest
import tensorflow as tf
from helpers import encoders, exports

import keras_transformer as kt
from keras_transformer.export import export_onnx, export_saved_model

pytest.importorskip("tensorflow_text", reason="strings inside graphs need tensorflow-text")
pytestmark = pytest.mark.usefixtures("forked_proofs")
MAX_LENGTH = 7


@pytest.mark.full
def test_the_tokenizer_is_checked_against_the_table_that_reads_its_ids(tmp_path):
    """Tables of numbers that the encoder computes may have fewer rows."""
    keras.utils.set_random_seed(5)
    tokenizer, size = exports.tokenizer(), encoders.SIZES["d_model"]
    ids = keras.Input((None,), dtype="int32", name="source_ids")
    numbers = kt.TokenEmbedding(9, size)(ids % 9)
    words = kt.TokenEmbedding(tokenizer.vocab_size, size)(ids)
    encoder = keras.Model(ids, keras.layers.Add()([words, numbers]))
    model = kt.Transformer(tokenizer.vocab_size, 1, **encoders.SIZES, encoder=encoder)
    search = kt.GreedySearch()
    manifest = export_onnx(
        model, tmp_path / "onnx", tokenizer, search, max_length=MAX_LENGTH, verbose=False
    )
    assert manifest["vocab_size"]["source"] == tokenizer.vocab_size
    large = kt.Tokenizer.train(exports.LINES, exports.VOCAB + 1, hard_vocab_limit=False)
    smaller = keras.Model(ids, kt.TokenEmbedding(large.vocab_size - 1, size)(ids))
    other = kt.Transformer(99, 1, **encoders.SIZES, encoder=smaller)
    with pytest.raises(ValueError, match="tokenizer of the source"):
        export_onnx(other, tmp_path / "no", large, search, max_length=MAX_LENGTH)


@pytest.mark.full
def test_saved_model_gives_strings_for_frames(tmp_path):
    """`test_routes.py` compares its ids."""
    keras.utils.set_random_seed(5)
    encoder = encoders.frames_encoder()
    listener = kt.Transformer(exports.VOCAB, 1, **encoders.SIZES, encoder=encoder)
    search, tokenizer = kt.GreedySearch(), exports.tokenizer()
    export_saved_model(
        listener, tmp_path / "saved", tokenizer, search, max_length=MAX_LENGTH, verbose=False
    )
    signatures = tf.saved_model.load(str(tmp_path / "saved")).signatures
    texts_and_ids = ["search", "search_with_options", "transcribe", "transcribe_with_options"]
    assert sorted(signatures) == ["logits", *texts_and_ids]
    frames = encoders.frames(4, 9)
    expected = search(listener, frames, MAX_LENGTH).ids.numpy()
    texts = signatures["transcribe"](frames=tf.constant(frames))["texts"].numpy()
    assert [[text.decode() for text in row] for row in texts] == [
        tokenizer.decode(row) for row in expected
    ]


def test_a_model_that_reads_no_text_has_no_text_model(tmp_path):
    viewer = encoders.writer(encoders.patches_encoder)
    options = dict(byte_fallback=False, hard_vocab_limit=False)
    tokenizer = kt.Tokenizer.train(["a b"], 23, **options)
    with pytest.raises(ValueError, match=r"this model's encoder reads \['image', 'place'\]"):
        export_onnx(viewer, tmp_path / "x", tokenizer, kt.GreedySearch(), text=True)
    with pytest.raises(ValueError, match="must be a dict with an array for each of"):
        export_onnx(viewer, tmp_path / "x", None, kt.GreedySearch(), samples=[{"image": [1.0]}])
    assert not (tmp_path / "x").exists()

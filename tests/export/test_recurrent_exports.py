"""Models with a recurrent decoder give the same tokens in Keras and in every exported form."""

import numpy as np
import pytest
import tensorflow as tf
from support import exports
from support.exports import MAX_LENGTH

import keras_transformer as kt
from keras_transformer.export import export_onnx, export_saved_model
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.runtime.session import open_session

pytestmark = pytest.mark.usefixtures("forked_proofs")

V = 23
BEAM = kt.BeamSearch(beam_width=3, length_penalty=0.6)


@pytest.fixture(scope="module")
def model():
    return exports.tiny(vocab_size=V, num_layers=(1, 2), recurrent_decoder=True)


@pytest.fixture(scope="module")
def expected(model):
    return BEAM(model, exports.source(vocab_size=V), MAX_LENGTH)


@pytest.mark.parametrize("layout", ["loop", "steps"])
def test_onnx_gives_keras_tokens(model, expected, layout, tmp_path):
    options = {"max_length": MAX_LENGTH, "layout": layout, "verbose": False}
    export_onnx(model, tmp_path / "out", search=BEAM, **options)
    session = open_session(read_artefact(tmp_path / "out"))
    ids, scores = session.run(["token_ids", "scores"], {"source_ids": exports.source(vocab_size=V)})
    assert len({tuple(row) for row in ids[:, 0].tolist()}) > 2
    np.testing.assert_array_equal(ids[:, :, : expected.ids.shape[2]], expected.ids)
    np.testing.assert_allclose(scores, expected.scores, rtol=1e-4)


def test_the_saved_model_gives_keras_tokens(model, expected, tmp_path):
    export_saved_model(model, tmp_path / "out", search=BEAM, max_length=MAX_LENGTH, verbose=False)
    signatures = tf.saved_model.load(str(tmp_path / "out")).signatures
    found = signatures["search"](source_ids=tf.constant(exports.source(vocab_size=V)))
    np.testing.assert_array_equal(found["token_ids"], expected.ids)
    np.testing.assert_allclose(found["scores"], expected.scores, rtol=1e-5)


def test_the_forward_pass_is_exported(model, tmp_path):
    export_onnx(model, tmp_path / "out", verbose=False)
    feed = {
        "source_ids": exports.source(vocab_size=V),
        "target_ids": exports.source(5, 9, vocab_size=V, seed=1),
    }
    (logits,) = exports.session(tmp_path / "out").run(None, feed)
    np.testing.assert_allclose(logits, model(feed), rtol=1e-4, atol=1e-5)

"""Terms of exported searches: Keras, one ONNX file, two files and a SavedModel give the same."""

import numpy as np
import pytest
import tensorflow as tf
from helpers import exports

import keras_transformer as kt
from keras_transformer.export import export_saved_model
from keras_transformer.export.artefact.reader import read_artefact
from keras_transformer.export.runtime.session import open_session

SEARCH = kt.BeamSearch(5, 0.6, constraints=[kt.Terms()])
FREE = kt.BeamSearch(5, 0.6)
SOURCE = exports.source(rows=7, length=7)
TERMS = np.random.default_rng(2).integers(4, exports.VOCAB, (7, 2, 3)).astype("int32")
TERMS *= (
    np.arange(3) < np.array([[3, 1], [0, 0], [2, 3], [1, 0], [1, 1], [3, 2], [2, 0]])[..., None]
)


def folder(layout="loop"):
    return exports.artefact(SEARCH, layout=layout)


def same(found, expected):
    np.testing.assert_array_equal(found[0], expected.ids)
    np.testing.assert_allclose(found[1], expected.scores, rtol=1e-4)


@pytest.mark.parametrize("layout", ["loop", "steps"])
def test_onnx_gives_what_keras_gives(layout):
    model, session = exports.shared_model(), open_session(read_artefact(folder(layout)))
    names = ["token_ids", "scores"]
    for rows in (slice(0, 7), slice(2, 3), slice(0, 0)):
        inputs = {"source_ids": SOURCE[rows], "terms": TERMS[rows]}
        expected = SEARCH(model, SOURCE[rows], exports.MAX_LENGTH, terms=TERMS[rows])
        same(session.run(names, inputs), expected)
    for ids, term in zip(SEARCH(model, SOURCE, 11, terms=TERMS).ids.numpy(), TERMS, strict=True):
        assert all(set(term[term > 0]) <= set(row) for row in ids)
    expected = FREE(model, SOURCE, exports.MAX_LENGTH)
    for more in ({}, {"terms": np.zeros([1, 0, 0], np.int32)}, {"terms": 0 * TERMS}):
        same(session.run(names, {"source_ids": SOURCE, **more}), expected)


@pytest.mark.full
def test_saved_models_take_terms(tmp_path):
    options = {"max_length": exports.MAX_LENGTH, "verbose": False}
    model = exports.shared_model()
    export_saved_model(model, tmp_path / "saved", exports.tokenizer(), SEARCH, **options)
    search = tf.saved_model.load(tmp_path / "saved").signatures["search_with_options"]
    inputs = {"source_ids": tf.constant(SOURCE), "terms": tf.constant(TERMS)}
    for name in set(search.structured_input_signature[1]) - set(inputs):
        inputs[name] = tf.constant(
            {**SEARCH.call_inputs, "max_length": np.array([11], "int32")}[name]
        )
    expected = SEARCH(model, SOURCE, exports.MAX_LENGTH, terms=TERMS)
    found = search(**inputs)
    same((found["token_ids"], found["scores"]), expected)

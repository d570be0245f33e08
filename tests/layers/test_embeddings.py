"""Token embeddings: scaled look-up, tied logits, the padding mask."""

import math

import keras
import numpy as np
import pytest
from support.checks import (
    POLICIES,
    assert_close,
    check_gradients,
    check_layer,
    gradients,
    integers,
    normal,
    numpy64,
    randomise,
    weights_of,
)

from keras_transformer.layers import embeddings

B, T, D, V = 3, 5, 7, 23  # batch, length, d_model, vocabulary


def built(**kwargs):
    layer = embeddings.TokenEmbedding(V, D, **kwargs)
    layer.build((B, T))
    return randomise(layer)


@pytest.mark.numeric
def test_lookup_is_scaled_by_the_root_of_d_model():
    layer, ids = built(), integers(0, V, B, T)
    table = weights_of(layer)["embeddings"]
    assert table.shape == (V, D)
    assert_close(layer(ids), table[ids] * math.sqrt(D), 1e-6)


@pytest.mark.numeric
def test_logits_share_the_matrix():
    layer, x = built(), normal(B, T, D)
    assert_close(layer.logits(x), x @ weights_of(layer)["embeddings"].T)
    assert len(layer.weights) == 1


@pytest.mark.numeric
def test_gradients_of_lookup_and_logits():
    layer, ids = built(), integers(0, V, B, T)
    weights, cotangent = weights_of(layer), normal(B, T, D)

    def lookup(weights):
        return np.sum(weights["embeddings"][ids] * math.sqrt(D) * cotangent)

    check_gradients(gradients(layer, cotangent, ids), weights, lookup)
    x, cotangent = normal(B, T, D, seed=1), normal(B, T, V, seed=2)

    def project(weights):
        return np.sum(x @ weights["embeddings"].T * cotangent)

    check_gradients(gradients(layer, cotangent, x, logits=True), weights, project)


@pytest.mark.parametrize("policy", POLICIES)
def test_logits_are_float32_under_every_policy(policy):
    logits = built(dtype=policy).logits(normal(B, T, D))
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"


def test_the_keras_mask_is_true_where_the_id_is_not_0():
    ids = keras.Input((None,), dtype="int32")
    x = embeddings.TokenEmbedding(V, D)(ids)
    mask = keras.Model(ids, x._keras_mask)
    given = np.array([[5, 3, 0], [0, 7, 2]], "int32")
    np.testing.assert_array_equal(numpy64(mask(given)), given != 0)


def test_logits_keep_the_mask_of_their_vectors():
    ids = keras.Input((None,), dtype="int32")
    layer = embeddings.TokenEmbedding(V, D)
    mask = keras.Model(ids, layer.logits(layer(ids))._keras_mask)
    given = np.array([[5, 3, 0], [0, 7, 2]], "int32")
    np.testing.assert_array_equal(numpy64(mask(given)), given != 0)


def test_fresh_embeddings_have_unit_variance_once_scaled():
    """100,000 draws: the sample variance errs by sqrt(2 / 1e5) = 0.45 %; five times that may be."""
    layer = embeddings.TokenEmbedding(1000, 100)
    layer.build((B, T))
    scaled = numpy64(layer(np.arange(1000, dtype="int32")[None]))
    assert abs(scaled.var() - 1.0) < 5 * math.sqrt(2 / 1e5)


def test_layer_promises(tmp_path):
    config = {"vocab_size": V, "d_model": D, "tie_output": False, "output_bias": True}
    ids = integers(1, V, B, T)
    check_layer(embeddings.TokenEmbedding, config, [ids], tmp_path, masked=False)


@pytest.mark.parametrize("sizes, named", [((0, D), "vocab_size"), ((V, -1), "d_model")])
def test_sizes_that_are_not_positive_are_refused(sizes, named):
    with pytest.raises(ValueError, match=f"{named} must be at least 1"):
        embeddings.TokenEmbedding(*sizes)


@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_ids_that_are_not_integers_are_refused(dtype):
    with pytest.raises(TypeError, match=f"integers.*{dtype}.*Cast"):
        built()(np.ones((B, T), dtype))


def test_vectors_of_another_size_are_refused():
    with pytest.raises(ValueError, match=f"size 11.*d_model={D}.*Project"):
        built().logits(normal(B, T, 11))

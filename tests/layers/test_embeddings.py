"""Token embeddings, tied to the logits, and segment embeddings.

Shapes: B batch, T length, D d_model, V vocabulary.
"""

import keras
import numpy as np
import pytest
from helpers.checks import (
    assert_close,
    check_gradients,
    gradients,
    integers,
    normal,
    numpy64,
    randomise,
    weights_of,
)

from keras_transformer.layers.embeddings import SegmentEmbedding, TokenEmbedding

B, T, D, V = 3, 5, 7, 23


def built(**kwargs):
    layer = TokenEmbedding(V, D, **kwargs)
    layer.build((B, T))
    return randomise(layer)


@pytest.mark.numeric
def test_lookup_and_logits_share_a_matrix_and_have_the_right_gradients():
    layer, x, cotangent = built(), normal(B, T, D), normal(B, T, V, seed=2)
    weights = weights_of(layer)  # the same matrix looks up; see `test_layers`
    assert {path: weight.shape for path, weight in weights.items()} == {"embeddings": (V, D)}

    def project(weights):
        return x @ weights["embeddings"].T

    assert_close(layer.logits(x), project(weights))
    found = gradients(layer, cotangent, x, logits=True)
    check_gradients(found, weights, lambda weights: np.sum(project(weights) * cotangent))


def test_vectors_and_logits_carry_the_padding_mask_of_the_ids():
    ids, layer = keras.Input((None,), dtype="int32"), TokenEmbedding(V, D)
    vectors = layer(ids)
    segments = SegmentEmbedding()(vectors, ids)
    outputs = [x._keras_mask for x in (vectors, layer.logits(vectors), segments)]
    given = np.array([[5, 3, 0], [0, 7, 2]], "int32")
    for mask in keras.Model(ids, outputs)(given):
        assert_close(mask, given != 0, 0.0)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint16", "uint32", "int64"])
def test_ids_of_every_integer_dtype_are_looked_up(dtype):
    ids = integers(1, V, B, T)
    assert_close(built()(ids.astype(dtype)), numpy64(built()(ids)), 0.0)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: built()(np.ones((B, T), "float32")), TypeError, "integers.*float32.*Cast"),
        (lambda: built()(np.ones((B, T), "bool")), TypeError, "integers.*bool.*Cast"),
        (
            lambda: SegmentEmbedding()(normal(B, T, D), normal(B, T)),
            TypeError,
            "integers.*float32.*segment ids",
        ),
        (lambda: built().logits(normal(B, T, 11)), ValueError, f"size 11.*d_model={D}.*Project"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()

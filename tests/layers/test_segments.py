"""Segment embeddings: added, with the mask of the tokens."""

import keras
import numpy as np
import pytest
from support.checks import (
    assert_close,
    check_layer,
    integers,
    normal,
    numpy64,
    randomise,
    weights_of,
)

from keras_transformer.layers.embeddings import SegmentEmbedding, TokenEmbedding

B, S, D = 3, 5, 8


@pytest.mark.numeric
def test_each_token_gets_the_vector_of_its_segment():
    layer, x, ids = SegmentEmbedding(), normal(B, S, D), integers(0, 3, B, S)
    layer.build(x.shape)
    table = weights_of(randomise(layer))["embeddings"]
    assert table.shape == (3, D)
    assert_close(layer(x, ids), x + table[ids], 1e-6)


def test_the_mask_of_the_tokens_passes_through():
    ids, segments = (keras.Input((None,), dtype="int32") for _ in range(2))
    y = SegmentEmbedding()(TokenEmbedding(11, D)(ids), segments)
    given = np.array([[5, 3, 7, 0]], "int32")
    found = keras.Model([ids, segments], y._keras_mask)([given, np.array([[1, 2, 2, 0]], "int32")])
    np.testing.assert_array_equal(numpy64(found), given != 0)


def test_layer_promises(tmp_path):
    inputs = [normal(B, S, D), integers(0, 4, B, S)]
    check_layer(SegmentEmbedding, {"num_segments": 3}, inputs, tmp_path)


def test_segment_ids_that_are_not_integers_are_refused():
    with pytest.raises(TypeError, match="integers.*float32.*segment ids"):
        SegmentEmbedding()(normal(B, S, D), normal(B, S))


def test_no_segments_are_refused():
    with pytest.raises(ValueError, match="num_segments must be at least 1"):
        SegmentEmbedding(0)

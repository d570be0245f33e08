"""Pooling: padding counts nothing, and a row of padding only is zeros."""

import keras
import numpy as np
import pytest
from support.checks import assert_close, check_layer, normal, numpy64

from keras_transformer.layers.embeddings import TokenEmbedding
from keras_transformer.layers.pooling import SequencePooling

B, S, D = 3, 5, 7
MASK = np.array([[1, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], bool)
REDUCTIONS = {"mean": np.mean, "max": np.max}
each_mode = pytest.mark.parametrize("mode", REDUCTIONS)


@pytest.mark.numeric
@each_mode
def test_only_real_vectors_count(mode):
    x = normal(B, S, D) - 9.0  # below zero, so that a maximum with padding's zeros would show
    expected = [REDUCTIONS[mode](x[i][MASK[i]], axis=0) for i in range(2)]
    pooled = SequencePooling(mode)(x, mask=MASK)
    assert_close(pooled[:2], expected, 1e-6)


@each_mode
def test_a_row_of_padding_only_gives_zeros(mode):
    assert_close(SequencePooling(mode)(normal(B, S, D), mask=MASK)[2:], np.zeros((1, D)), 0.0)
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, SequencePooling(mode)(TokenEmbedding(11, D)(ids)))
    assert_close(model(np.zeros((2, 4), "int32")), np.zeros((2, D)), 0.0)


@pytest.mark.numeric
@each_mode
def test_without_a_mask_every_vector_counts(mode):
    x = normal(B, S, D)
    assert_close(SequencePooling(mode)(x), REDUCTIONS[mode](x, axis=1), 1e-6)


@each_mode
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_stands_in_padding_is_not_read(mode, value):
    x = normal(B, S, D)
    x[~MASK] = value
    assert np.isfinite(numpy64(SequencePooling(mode)(x, mask=MASK))).all()


def test_sums_are_float32_under_every_policy():
    """4,096 ones: a sum in float16 would still do; of 100s it would be infinite."""
    x = np.full((1, 4096, 1), 100.0, "float32")
    assert_close(SequencePooling(dtype="mixed_float16")(x), [[100.0]], 0.0)


def test_the_pooled_vector_has_no_mask():
    ids = keras.Input((None,), dtype="int32")
    pooled = SequencePooling()(TokenEmbedding(11, D)(ids))
    assert getattr(pooled, "_keras_mask", None) is None


def test_layer_promises(tmp_path):
    check_layer(SequencePooling, {"mode": "max"}, [normal(B, S, D)], tmp_path, masked=False)


def test_unknown_modes_are_refused():
    with pytest.raises(ValueError, match=r"mode must be one of \('mean', 'max'\), but 'sum'"):
        SequencePooling("sum")

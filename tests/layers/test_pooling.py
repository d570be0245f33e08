"""Sequence pooling and the class token, which both ignore padding."""

import keras
import numpy as np
import pytest
from helpers.checks import (
    assert_close,
    compiled,
    normal,
    numpy64,
    randomise,
)

from keras_transformer.layers.blocks import EncoderBlock
from keras_transformer.layers.embeddings import TokenEmbedding
from keras_transformer.layers.pooling import ClassToken, SequencePooling

B, S, D = 3, 5, 8
MASK = np.array([[1, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], bool)
REDUCTIONS = {"mean": np.mean, "max": np.max}
each_mode = pytest.mark.parametrize("mode", REDUCTIONS)

# Pooling


@pytest.mark.numeric
@each_mode
@pytest.mark.parametrize("padding", [7.0, np.nan, np.inf])
def test_pooling_ignores_padding(mode, padding):
    x = normal(B, S, D) - 9.0  # negative, so that a maximum with zero padding would show
    whole = REDUCTIONS[mode](x, axis=1)
    assert_close(SequencePooling(mode)(x), whole, 1e-5)  # without a mask
    x[~MASK] = padding
    expected = [REDUCTIONS[mode](x[i][MASK[i]], axis=0) for i in range(2)]
    assert_close(SequencePooling(mode)(x, mask=MASK), [*expected, np.zeros(D)], 1e-5)


@each_mode
def test_no_position_gives_zeros(mode):
    assert_close(SequencePooling(mode)(np.zeros((B, 0, D))), np.zeros((B, D)), 0.0)


@each_mode
def test_the_keras_mask_is_read_and_not_passed_on(mode):
    ids = keras.Input((None,), dtype="int32")
    pooled = SequencePooling(mode)(TokenEmbedding(11, D)(ids))
    assert getattr(pooled, "_keras_mask", None) is None
    found = keras.Model(ids, pooled)(np.zeros((2, 4), "int32"))
    assert_close(found, np.zeros((2, D)), 0.0)


def test_sums_are_float32_under_every_policy():
    """A float16 sum of 4,096 values of 100 would be infinite."""
    x = np.full((1, 4096, 1), 100.0, "float32")
    assert_close(SequencePooling(dtype="mixed_float16")(x), [[100.0]], 0.0)


# The class token


def classified(ids):
    """Returns the class token after a block, (B, D), and the mask."""
    ends = keras.Input((None,), dtype="int32")
    x = EncoderBlock(2, 16)(ClassToken()(TokenEmbedding(11, D)(ends)))
    return compiled(randomise(keras.Model(ends, [x[:, 0], x._keras_mask])))(ids)


def test_the_class_token_is_never_masked():
    vectors, mask = classified(np.array([[5, 3, 0], [0, 0, 0]], "int32"))
    assert_close(mask, [[1, 1, 1, 0], [1, 0, 0, 0]], 0.0)
    assert np.isfinite(numpy64(vectors)).all()
    assert_close(ClassToken().compute_mask(None, np.zeros((B, 0), bool)), np.ones((B, 1)), 0.0)


@pytest.mark.numeric
@pytest.mark.parametrize("padded", [[[5, 3, 0, 0]], [[0, 0, 5, 3]]], ids=["right", "left"])
def test_padding_changes_nothing(padded):
    alone, _ = classified(np.array([[5, 3]], "int32"))
    assert_close(classified(np.array(padded, "int32"))[0], numpy64(alone))


# Promises and errors


def test_unknown_modes_and_other_ranks_are_refused():
    with pytest.raises(ValueError, match=r"mode must be one of \('mean', 'max'\), but 'sum'"):
        SequencePooling("sum")
    with pytest.raises(ValueError, match=r"inputs must have shape \(batch, length, features\)"):
        ClassToken()(normal(B, D))

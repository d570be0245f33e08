"""The class token: first, learned, never masked."""

import keras
import numpy as np
import pytest
from support.checks import (
    assert_close,
    check_layer,
    compiled,
    normal,
    numpy64,
    randomise,
    weights_of,
)

from keras_transformer.layers.blocks import EncoderBlock
from keras_transformer.layers.embeddings import TokenEmbedding
from keras_transformer.layers.pooling import ClassToken

B, S, D = 3, 5, 8


def test_the_token_stands_first_and_the_rest_follows():
    layer, x = ClassToken(), normal(B, S, D)
    layer.build(x.shape)
    y = numpy64(randomise(layer)(x))
    assert y.shape == (B, S + 1, D)
    assert_close(y[:, 1:], x, 0.0)
    assert_close(y[:, 0], np.tile(weights_of(layer)["embedding"], (B, 1)), 0.0)


def test_layer_promises(tmp_path):
    check_layer(ClassToken, {}, [normal(B, S, D)], tmp_path, masked=False)


def classified(ids):
    """The class token behind a block, (B, D)."""
    ends = keras.Input((None,), dtype="int32")
    x = ClassToken()(TokenEmbedding(11, D)(ends))
    x = EncoderBlock(2, 16)(x)
    return compiled(randomise(keras.Model(ends, [x[:, 0], x._keras_mask])))(ids)


def test_the_mask_grows_by_a_token_that_is_never_masked():
    _, mask = classified(np.array([[5, 3, 0], [0, 0, 0]], "int32"))
    np.testing.assert_array_equal(
        keras.ops.convert_to_numpy(mask), [[True, True, True, False], [True, False, False, False]]
    )


@pytest.mark.numeric
@pytest.mark.parametrize("padded", [[[5, 3, 0, 0]], [[0, 0, 5, 3]]], ids=["right", "left"])
def test_padding_changes_nothing(padded):
    alone, _ = classified(np.array([[5, 3]], "int32"))
    assert_close(classified(np.array(padded, "int32"))[0], numpy64(alone))


def test_the_mask_of_an_empty_row_is_the_token_alone():
    mask = ClassToken().compute_mask(normal(B, 0, D), np.zeros((B, 0), bool))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(mask), np.ones((B, 1), bool))


def test_a_row_of_padding_only_gives_numbers():
    assert np.isfinite(numpy64(classified(np.zeros((2, 4), "int32"))[0])).all()


def test_another_rank_is_refused():
    with pytest.raises(ValueError, match=r"inputs must have shape \(batch, length, features\)"):
        ClassToken()(normal(B, D))

"""Masks against literal matrices. Shapes: B batch, T target length, S source length."""

import numpy as np
import pytest
from keras import ops
from support import reference

from keras_transformer.layers import masks

pytestmark = pytest.mark.numeric


def to_numpy(mask):
    assert ops.dtype(mask) == "bool"
    return ops.convert_to_numpy(mask)


def test_padding_mask_is_true_where_there_is_a_token():
    ids = np.array([[5, 3, 0], [0, 7, 2]], "int32")
    expected = [[True, True, False], [False, True, True]]
    np.testing.assert_array_equal(to_numpy(masks.padding_mask(ids)), expected)


def test_padding_mask_takes_another_pad_id():
    ids = np.array([[5, 3, 0]], "int32")
    np.testing.assert_array_equal(
        to_numpy(masks.padding_mask(ids, pad_id=3)), [[True, False, True]]
    )


def test_causal_mask_sees_itself_and_the_past():
    expected = [[[True, False, False], [True, True, False], [True, True, True]]]
    np.testing.assert_array_equal(to_numpy(masks.causal_mask(3)), expected)


def test_causal_mask_of_a_later_part_is_the_last_rows_of_the_whole():
    expected = reference.causal_mask(7)[None, 5:]
    np.testing.assert_array_equal(to_numpy(masks.causal_mask(2, offset=5)), expected)


def test_combined_masks_allow_what_every_mask_allows():
    padding = np.array([[True, True, False], [False, True, True]])[:, None]  # (B, 1, S)
    expected = [
        [[True, False, False], [True, True, False], [True, True, False]],
        [[False, False, False], [False, True, False], [False, True, True]],
    ]
    combined = masks.combine_masks(masks.causal_mask(3), None, ops.convert_to_tensor(padding))
    np.testing.assert_array_equal(to_numpy(combined), expected)


def test_combining_nothing_restricts_nothing():
    assert masks.combine_masks() is None
    assert masks.combine_masks(None, None) is None


@pytest.mark.parametrize("shape", [(2, 5), (2, 3, 5), (2, 7, 3, 5), (2, 1, 5)])
def test_a_mask_of_rank_2_3_or_4_broadcasts_to_attention_scores(shape):
    mask = np.random.default_rng(0).random(shape) < 0.5
    rows = {2: (slice(None), None, None), 3: (slice(None), None), 4: ()}[len(shape)]
    np.testing.assert_array_equal(to_numpy(masks.attention_shape(mask)), mask[rows])


def test_no_mask_stays_no_mask():
    assert masks.attention_shape(None) is None


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_a_mask_that_is_not_boolean_is_refused(dtype):
    with pytest.raises(TypeError, match=f"must be boolean.*{dtype}.*mask != 0"):
        masks.attention_shape(np.ones((2, 3), dtype))


@pytest.mark.parametrize("shape", [(3,), (2, 3, 5, 7, 11)])
def test_a_mask_of_another_rank_is_refused(shape):
    with pytest.raises(ValueError, match=rf"\(B, T, S\).*rank {len(shape)}"):
        masks.attention_shape(np.ones(shape, bool))

"""Masks against literal matrices. Shapes: B batch, T target length, S source length."""

import numpy as np
import pytest
from keras import ops

from keras_transformer.layers import masks

pytestmark = pytest.mark.numeric


def to_numpy(mask):
    assert ops.dtype(mask) == "bool"
    return ops.convert_to_numpy(mask)


IDS = np.array([[5, 3, 0], [0, 7, 2]], "int32")
LOWER = np.tril(np.ones((9, 9), bool))
PADDING = np.array([[True, True, False], [False, True, True]])[:, None]  # (B, 1, S)


@pytest.mark.parametrize(
    "make, expected",
    [
        (lambda: masks.padding_mask(IDS), IDS != 0),
        (lambda: masks.padding_mask(IDS, pad_id=3), IDS != 3),
        (lambda: masks.causal_mask(3), LOWER[None, :3, :3]),
        (lambda: masks.causal_mask(2, offset=5), LOWER[None, 5:7, :7]),
        (lambda: masks.causal_mask(2, num_keys=4), LOWER[None, :2, :4]),
        (
            lambda: masks.combine_masks(masks.causal_mask(3), None, ops.convert_to_tensor(PADDING)),
            LOWER[:3, :3] & PADDING,
        ),
    ],
    ids=["padding", "other padding", "causal", "later queries", "more keys", "combined"],
)
def test_masks_equal_literal_matrices(make, expected):
    np.testing.assert_array_equal(to_numpy(make()), expected)


def test_combining_no_masks_gives_none():
    assert masks.combine_masks() is None and masks.combine_masks(None, None) is None


@pytest.mark.parametrize("shape", [(2, 5), (2, 3, 5), (2, 7, 3, 5), (2, 1, 5)])
@pytest.mark.parametrize("scores_shape", [(2, 7, 3, 5), (None, 7, None, None)])
def test_a_mask_of_rank_2_3_or_4_broadcasts_to_attention_scores(scores_shape, shape):
    mask = np.random.default_rng(0).random(shape) < 0.5
    rows = {2: (slice(None), None, None), 3: (slice(None), None), 4: ()}[len(shape)]
    found = to_numpy(masks.attention_shape(mask, scores_shape))
    np.testing.assert_array_equal(found, mask[rows])
    assert masks.attention_shape(None, scores_shape) is None


def test_masks_of_another_dtype_or_rank_are_refused():
    for dtype in ("int32", "float32"):
        with pytest.raises(TypeError, match=f"must be boolean.*{dtype}.*mask != 0"):
            masks.attention_shape(np.ones((2, 3), dtype), (2, 7, 3, 5))
    for shape in [(3,), (2, 3, 5, 7, 11)]:
        with pytest.raises(ValueError, match=rf"\(B, T, S\).*rank {len(shape)}"):
            masks.attention_shape(np.ones(shape, bool), (2, 7, 3, 5))

"""Made rows with a marked token."""

import numpy as np
import pytest
from support.sets.recall import recall_rows


def test_one_token_is_marked_at_its_distance_and_is_the_label():
    ids, labels, distances = recall_rows(np.random.default_rng(3), 200, 9, [0, 2, 8], num_values=5)
    assert ids.shape == (200, 9) and ids.dtype == np.int32
    assert ids.min() == 1 and ids.max() == 10
    rows, places = np.nonzero(ids > 5)
    np.testing.assert_array_equal(rows, np.arange(200))  # one in each row
    np.testing.assert_array_equal(places, 8 - distances)
    np.testing.assert_array_equal(ids[rows, places], labels + 6)
    assert set(distances) == {0, 2, 8} and set(labels) == set(range(5))


@pytest.mark.parametrize("distance", [-1, 9])
def test_a_distance_is_within_the_row(distance):
    with pytest.raises(ValueError, match=r"must be in \[0, 9\)"):
        recall_rows(np.random.default_rng(3), 2, 9, [1, distance])

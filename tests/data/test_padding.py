"""Rows of different length in one array."""

import numpy as np
import pytest

from keras_transformer.padding import pad_rows


@pytest.mark.parametrize("kind", [list, np.array, tuple])
def test_rows_are_padded_on_the_right(kind):
    ids = pad_rows([kind([5, 7, 3]), kind([]), kind([9, 3])])
    np.testing.assert_array_equal(ids, [[5, 7, 3], [0, 0, 0], [9, 3, 0]])
    assert ids.dtype == np.int32


def test_size_may_be_given():
    ids = pad_rows([[5, 3]], batch_size=2, length=3)
    np.testing.assert_array_equal(ids, [[5, 3, 0], [0, 0, 0]])


def test_no_rows_give_an_empty_array():
    assert pad_rows([]).shape == (0, 0)
    np.testing.assert_array_equal(pad_rows([], batch_size=1, length=2), [[0, 0]])


@pytest.mark.parametrize("size", [{"batch_size": 1}, {"length": 2}])
def test_rows_that_do_not_fit_are_refused(size):
    with pytest.raises(ValueError, match="2 rows of up to 3 ids do not fit into"):
        pad_rows([[5, 7, 3], [9, 3]], **size)

"""Names of classes and their ids."""

import numpy as np
import pytest

from keras_transformer.data.examples import label_ids, pad_labels


def test_names_are_sorted_and_numbers_count_from_zero():
    ids, names = label_ids(["b", "a", "b"])
    assert ids.tolist() == [1, 0, 1] and names == ["a", "b"] and ids.dtype == np.int32
    ids, names = label_ids(np.array([2, 0]))
    assert ids.tolist() == [2, 0] and names == ["0", "1", "2"]


def test_given_names_keep_their_order():
    assert label_ids(["b", "a"], ["b", "a", "c"])[0].tolist() == [0, 1]
    assert label_ids([1, 0], ["b", "a"])[1] == ["b", "a"]


@pytest.mark.parametrize("labels", [["a", "z"], [0, 5], [0, -1]])
def test_an_unknown_label_is_named(labels):
    with pytest.raises(
        ValueError, match=rf"label 1 is {labels[1]!r}, but the labels are \['a', 'b'\]"
    ):
        label_ids(labels, ["a", "b"])


@pytest.mark.parametrize("labels", [["a", 1], [1, "a"], [0, 0.5], ["a", None]])
def test_labels_of_several_kinds_are_refused(labels):
    with pytest.raises(TypeError, match=f"got {labels[1]!r} of type .* as label 1"):
        label_ids(labels)


def test_a_name_that_comes_twice_is_refused():
    with pytest.raises(ValueError, match="label_names must differ"):
        label_ids(["a"], ["a", "a"])


def test_missing_rows_have_no_label():
    assert pad_labels(np.array([3, 0]), 4).tolist() == [3, 0, -1, -1]

"""A matrix of numbers: labels at their rows and columns, and what it refuses."""

import numpy as np
import pytest

from keras_transformer.plots import plot_matrix


def test_rows_and_columns_have_their_texts():
    texts = ["a $1 cat", "b", "x " * 30], ["eins", "zwei", "drei"]
    figure = plot_matrix(np.eye(3), *texts, "cosine")
    panel, colours = figure.axes
    rows = [label.get_text() for label in panel.get_yticklabels()]
    assert rows[:2] == [r"a \$1 cat", "b"]
    assert rows[2].endswith("…") and len(rows[2]) <= 40
    assert [label.get_text() for label in panel.get_xticklabels()] == ["eins", "zwei", "drei"]
    np.testing.assert_array_equal(panel.images[0].get_array(), np.eye(3))
    assert colours.get_ylabel() == "cosine"


def test_labels_must_fit():
    with pytest.raises(ValueError, match=r"\(2, 3\), by the number of labels, but .* \(3, 3\)"):
        plot_matrix(np.eye(3), ["a", "b"], ["eins", "zwei", "drei"], "cosine")

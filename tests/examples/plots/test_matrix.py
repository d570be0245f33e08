"""A matrix of numbers: labels at their rows and columns, and what it refuses."""

import numpy as np
import pytest
from support.plots import plot_matrices, plot_matrix


def test_rows_and_columns_have_their_texts():
    texts = ["a $1 cat", "b", "x " * 30], ["eins", "zwei", "drei"]
    figure = plot_matrix(np.eye(3), *texts, "cosine")
    panel, colours = figure.axes
    rows = [label.get_text() for label in panel.get_yticklabels()]
    assert rows[:2] == [r"a \$1 cat", "b"]
    assert rows[2].endswith("…") and len(rows[2]) <= 45
    assert [label.get_text() for label in panel.get_xticklabels()] == ["eins", "zwei", "drei"]
    np.testing.assert_array_equal(panel.images[0].get_array(), np.eye(3))
    assert colours.get_ylabel() == "cosine"


def test_labels_must_fit():
    with pytest.raises(ValueError, match=r"\(2, 3\), by the number of labels, but .* \(3, 3\)"):
        plot_matrix(np.eye(3), ["a", "b"], ["eins", "zwei", "drei"], "cosine")


def test_parts_have_one_scale_and_cells_of_one_size():
    parts = [(np.zeros((2, 3)), ["a", "b", "c"]), (np.full((2, 1), 0.5), ["d"])]
    first, second, _ = plot_matrices(parts, ["x", "y"], "share").axes
    assert [label.get_text() for label in second.get_xticklabels()] == ["d"]
    assert first.get_xlim() == second.get_xlim()
    assert [panel.images[0].get_clim() for panel in (first, second)] == [(0, 0.5)] * 2
    with pytest.raises(ValueError, match=r"\(2, 1\), by the number of labels, but .* \(1, 1\)"):
        plot_matrices([(np.ones((1, 1)), ["d"])], ["x", "y"], "share")

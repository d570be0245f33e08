"""Diagrams of lines: labels, scales, one colour a name, and what is refused."""

import pytest
from support.plots import Panel, plot_panels


def test_each_panel_has_its_labels_scales_and_lines():
    first = Panel("time", "n", "ms", [1, 2], {"a": [3, 4], "b": [5, 6]}, True, True)
    second = Panel("share", "distance", "right", [1, 2, 3], {"b": [1, 1, 0]})
    left, right = plot_panels([first, second]).axes
    assert (left.get_title(), left.get_xlabel(), left.get_ylabel()) == ("time", "n", "ms")
    assert (left.get_xscale(), left.get_yscale()) == ("log", "log")
    assert (right.get_xscale(), right.get_yscale()) == ("linear", "linear")
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["a", "b"]
    assert right.lines[0].get_ydata().tolist() == [1, 1, 0]
    colours = [line.get_color() for line in (*left.lines, *right.lines)]
    assert colours[1] == colours[2] != colours[0]


@pytest.mark.parametrize(
    ("panels", "told"),
    [
        ([], "There must be a panel"),
        ([Panel("t", "x", "y", [1], {})], "lines in each"),
        ([Panel("t", "x", "y", [1, 2], {"a": [3]})], "'a' has 1 numbers y for 2 numbers x"),
        ([Panel("t", "x", "y", [1], {str(i): [1] for i in range(9)})], "but 9 names"),
    ],
)
def test_what_does_not_fit_is_told(panels, told):
    with pytest.raises(ValueError, match=told):
        plot_panels(panels)

"""Confusion matrices show shares of the true class."""

import numpy as np
import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("matplotlib")

from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from support import plots  # noqa: E402

LABELS = ["cat", "dog", "bird"]


def test_rows_are_shares_of_the_true_class(tmp_path):
    true, predicted = [0, 0, 0, 0, 1], ["cat", "cat", "cat", "dog", "bird"]
    figure = plots.plot_confusion(true, predicted, LABELS, "animals")
    panel = figure.axes[0]
    shown = panel.images[0].get_array()
    np.testing.assert_array_equal(shown, [[0.75, 0.25, 0], [0, 0, 1], [0, 0, 0]])
    cells = {text.get_position(): text.get_text() for text in panel.texts}
    assert cells == {(0, 0): "75", (1, 0): "25", (2, 1): "100"}  # column, row
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("predicted class", "true class")
    assert [label.get_text() for label in panel.get_yticklabels()] == LABELS
    figure.savefig(tmp_path / "confusion.png")
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")


def test_many_classes_have_no_numbers_in_the_cells():
    labels = [f"class {number}" for number in range(20)]
    assert not plots.plot_confusion([3, 4], [3, 5], labels).axes[0].texts


@pytest.mark.parametrize("true", [[0, 3], ["cat", "cow"], [0, -1]])
def test_an_unknown_class_is_named(true):
    with pytest.raises(ValueError, match="is not one of the 3 labels"):
        plots.plot_confusion(true, [0, 1], LABELS)


@pytest.mark.parametrize("true, predicted", [([0], [0, 1]), ([], [])])
def test_one_class_an_example(true, predicted):
    with pytest.raises(ValueError, match="one class an example"):
        plots.plot_confusion(true, predicted, LABELS)


@pytest.mark.parametrize("count", [2, 10, 30])
def test_nothing_is_cut_at_the_edges(count):
    labels = [f"class {number}" for number in range(count)]
    figure = plots.plot_confusion(labels, labels, labels)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for panel in figure.axes:
        box = panel.get_tightbbox(canvas.get_renderer())
        assert box.x0 >= 0 and box.y0 >= 0
        assert box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height

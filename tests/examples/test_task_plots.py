"""Figures of the tasks. `test_example_support.py` has their invalid arguments."""

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from support import plots
from support.plots import Panel
from support.plots.words import DARKEST
from support.scores.detections import Detection
from support.sets.chorales import VOICES
from support.sets.trees import read_trees

LABELS = ["cat", "dog", "bird"]
PAST, TRUTH = np.arange(10.0).reshape(5, 2), np.arange(6.0).reshape(3, 2)
DRAW = np.random.default_rng(5)
FRAMES = DRAW.normal(size=(17, 5))
CHORALE = np.array([[72, 67, 64, 48], [72, 67, -1, 48], [74, 67, -1, 50]], np.int32)


def texts(items):
    return [item.get_text() for item in items]


def labels(axis):
    return texts(axis.get_ticklabels())


def titles(figure, count=None):
    return [panel.get_title() for panel in figure.axes[:count]]


def test_rows_of_a_confusion_are_shares_of_the_true_class():
    true, predicted = [0, 0, 0, 0, 1], ["cat", "cat", "cat", "dog", "bird"]
    (panel, *_) = plots.plot_confusion(true, predicted, LABELS, "animals").axes
    shown = panel.images[0].get_array()
    np.testing.assert_array_equal(shown, [[0.75, 0.25, 0], [0, 0, 1], [0, 0, 0]])
    cells = {text.get_position(): text.get_text() for text in panel.texts}
    assert cells == {(0, 0): "75", (1, 0): "25", (2, 1): "100"}  # column, row
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("predicted class", "true class")
    assert labels(panel.yaxis) == LABELS


@pytest.mark.parametrize("count", [2, 10, 30])
def test_no_label_of_a_confusion_is_cut_at_the_edges(count):
    names = [f"class {number}" for number in range(count)]
    figure = plots.plot_confusion(names, names, names)
    assert bool(figure.axes[0].texts) == (count < 20)  # no numbers in small cells
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for panel in figure.axes:
        box = panel.get_tightbbox(canvas.get_renderer())
        assert box.x0 >= 0 and box.y0 >= 0
        assert box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height


def test_each_series_of_a_forecast_has_a_panel():
    forecasts = {"model": TRUTH + 1, "last value": TRUTH * 0}
    figure = plots.plot_forecast(PAST, TRUTH, forecasts, ["load", "oil"], "hour", "kW", "title")
    assert [panel.get_ylabel() for panel in figure.axes] == ["load", "oil"]
    assert figure.axes[-1].get_xlabel() == "hours from the first that is forecast"
    assert (figure.get_supylabel(), figure.get_suptitle()) == ("kW", "title")
    for number, panel in enumerate(figure.axes):
        past, *others, _ = (line.get_data() for line in panel.lines)
        np.testing.assert_array_equal(past, ([-5, -4, -3, -2, -1], PAST[:, number]))
        expected = [([0, 1, 2], array[:, number]) for array in (TRUTH, *forecasts.values())]
        np.testing.assert_array_equal(others, expected)
    assert texts(figure.legends[0].texts) == ["truth", *forecasts]


def test_anomalies_are_shaded_in_every_panel():
    marked = [True, False, False, True, True]
    figure = plots.plot_anomalies(np.zeros((5, 2)), marked, {"a": range(5), "b": range(5)})
    assert [axes.get_ylabel() for axes in figure.axes] == ["series", "a", "b"]
    for axes in figure.axes:
        places = [(patch.get_x(), patch.get_width()) for patch in axes.patches]
        assert places == [(-0.5, 1), (2.5, 2)]


def test_the_step_of_the_largest_weight_is_darkest():
    series = [np.arange(6.0).reshape(3, 2), np.ones((2, 1))]
    figure = plots.plot_series_attention(series, [[0.1, 0.4, 0.2], [0, 0]], ["a -> b", "c -> c"])
    first, second = figure.axes
    assert titles(figure) == ["a -> b", "c -> c"]
    np.testing.assert_array_equal([line.get_ydata() for line in first.lines], series[0].T)
    np.testing.assert_allclose(first.images[0].get_array(), [[0.25, 1, 0.5]])
    assert not np.asarray(second.images[0].get_array()).any()


def test_rows_and_columns_of_a_matrix_have_their_labels():
    names = ["a $1 cat", "b", "x " * 30], ["eins", "zwei", "drei"]
    panel, colours = plots.plot_matrix(np.eye(3), *names, "cosine").axes
    *rows, long = labels(panel.yaxis)
    assert rows == [r"a \$1 cat", "b"] and labels(panel.xaxis) == names[1]
    assert long.endswith("…") and len(long) <= 45
    np.testing.assert_array_equal(panel.images[0].get_array(), np.eye(3))
    assert colours.get_ylabel() == "cosine"
    # Parts have one scale, and cells of one size.
    parts = [(np.zeros((2, 3)), ["a", "b", "c"]), (np.full((2, 1), 0.5), ["d"])]
    first, second, _ = plots.plot_matrices(parts, ["x", "y"], "share").axes
    assert labels(second.xaxis) == ["d"] and first.get_xlim() == second.get_xlim()
    assert [panel.images[0].get_clim() for panel in (first, second)] == [(0, 0.5)] * 2


def test_each_panel_has_its_labels_scales_and_lines():
    first = Panel("time", "n", "ms", [1, 2], {"a": [3, 4], "b": [5, 6]}, True, True)
    second = Panel("share", "distance", "right", [1, 2, 3], {"b": [1, 1, 0]})
    left, right = plots.plot_panels([first, second]).axes
    assert (left.get_title(), left.get_xlabel(), left.get_ylabel()) == ("time", "n", "ms")
    scales = [(panel.get_xscale(), panel.get_yscale()) for panel in (left, right)]
    assert scales == [("log", "log"), ("linear", "linear")]
    assert texts(left.get_legend().get_texts()) == ["a", "b"]
    assert right.lines[0].get_ydata().tolist() == [1, 1, 0]
    colours = [line.get_color() for line in (*left.lines, *right.lines)]
    assert colours[1] == colours[2] != colours[0]  # one colour per name


@pytest.mark.parametrize("shape", [(2, 28, 20), (2, 28, 20, 1), (2, 28, 20, 3)])
def test_each_picture_has_a_row_and_each_map_a_column(shape):
    pictures, maps = DRAW.random(shape), DRAW.random((2, 3, 7, 5)).astype("float32")
    names = ["mean", "head 1", "head 2"]
    figure = plots.plot_picture_attention(pictures, maps, ["boot", "bag"], names)
    panels = np.array(figure.axes[:8]).reshape(2, 4)
    assert titles(figure, 4) == ["picture", *names]
    assert [row[0].get_ylabel() for row in panels] == ["boot", "bag"]
    for row, picture, weights in zip(panels, pictures, maps, strict=True):
        for panel in row:
            shown = np.squeeze(panel.images[0].get_array())
            np.testing.assert_array_equal(shown, picture.squeeze())
        for panel, one in zip(row[1:], weights, strict=True):
            shown = panel.images[1]
            np.testing.assert_allclose(shown.get_array(), one / one.max())
            assert shown.get_extent() == panel.images[0].get_extent()
    assert figure.axes[-1].get_ylabel() == "weight / largest weight"


def test_weights_of_zero_are_drawn():
    figure = plots.plot_picture_attention(np.ones((1, 4, 4)), np.zeros((1, 1, 2, 2)), ["a"], ["b"])
    assert not np.asarray(figure.axes[1].images[1].get_array()).any()
    assert plots.plot_words([["a"]], [[0.0]], [""]).axes[0].patches


def test_attention_to_sound_shares_its_time_axis():
    weights = DRAW.random((3, 7))
    figure = plots.plot_spectrogram(FRAMES, 0.5, 4000, weights, ["$", "b", "</s>"], title="seven")
    sound, attention = figure.axes
    assert sound.get_ylabel() == "frequency in kHz" and figure.get_suptitle() == "seven"
    assert attention.get_shared_x_axes().joined(sound, attention)
    np.testing.assert_array_equal(attention.images[0].get_array(), weights)
    assert attention.images[0].get_extent() == [0, 0.5, 2.5, -0.5]
    assert labels(attention.yaxis) == [r"\$", "b", "</s>"]
    (alone,) = plots.plot_spectrogram(FRAMES, 0.5, 4000).axes
    assert attention.get_xlabel() == alone.get_xlabel() == "time in s"
    # Several sounds share time and colours.
    figure = plots.plot_sounds({"noisy": FRAMES, "clean": FRAMES - 1}, 0.5, 4000)
    assert titles(figure) == ["noisy", "clean"]
    limits = pytest.approx((FRAMES.min() - 1, FRAMES.max()))
    assert [panel.images[0].get_clim() for panel in figure.axes] == [limits] * 2
    for panel, frames in zip((*figure.axes, sound), (FRAMES, FRAMES - 1, FRAMES), strict=True):
        image = panel.images[0]
        np.testing.assert_array_equal(image.get_array(), frames.T)
        assert image.get_extent() == [0, 0.5, 0, 4] and image.origin == "lower"


def test_words_of_a_tree_stand_in_a_row_and_phrases_above():
    trees = read_trees("(S (NP (DT the) (NN dog)) (VP (VBZ sleeps)))\n(NP (NN $5))")
    figure = plots.plot_trees(trees, ["by people", "by the model"], "a sentence")
    first, second = figure.axes
    words = {"the": (0, 0), "dog": (1, 0), "sleeps": (2, 0)}
    places = {text.get_text(): text.get_position() for text in first.texts}
    assert places == {**words, "NP": (0.5, 1), "VP": (2, 1), "S": (1.25, 2)}
    assert texts(second.texts) == ["$5", "NP"]
    assert titles(figure) == ["by people", "by the model"]
    assert len(first.lines) == 5  # one from each node to each of its children


def test_lines_of_a_tree_do_not_cross():
    """Tests a short subject and a long phrase after the verb."""
    text = "(S (NP (PRP He)) (VP (VBD said) (SBAR (S (NP (NNS dogs)) (VP (VBP bark))))) (. .))"
    lines = plots.plot_trees(read_trees(text), [""]).axes[0].lines
    for bar in lines:
        (begin, end, _), (height, _, _) = bar.get_data()
        begin, end = sorted((begin, end))
        for other in lines:
            (_, x, _), (_, top, bottom) = other.get_data()
            assert not (begin < x < end and bottom < height < top)


def test_the_word_of_the_largest_weight_is_darkest():
    sentences, weights = [["not", " bad"], ["$5"]], [[0.8, 0.2], [0.01]]
    panel = plots.plot_words(sentences, weights, ["good", "price"], "opinions").axes[0]
    assert texts(panel.texts) == ["good", "not", " bad", "price", "$5"]
    blues = colormaps["Blues"]
    shades = [box.get_facecolor() for box in panel.patches]
    assert shades == [blues(DARKEST), blues(DARKEST / 4), blues(DARKEST)]
    # Each box has the position and length of its token.
    starts = [(box.get_x(), box.get_width()) for box in panel.patches]
    assert starts == [(7, 3), (10, 4), (7, 2)]


def test_vehicles_are_shaded_by_their_weights_on_one_scale():
    places = [np.array([[100.0, 4], [130, 8], [60, 0]]), np.array([[0.0, 0], [20, 0]])]
    weights = [np.array([0.1, 0.5, 0.4]), np.array([0.8, 0.2])]
    figure = plots.plot_roads(places, weights, ["right", "slower"], title="road")
    first, second, bar = figure.axes
    assert titles(figure, 2) == ["right", "slower"] and figure.get_suptitle() == "road"
    assert [one.get_x() for one in first.patches] == [-2.5, 27.5, -42.5]
    assert first.patches[0].get_linewidth() > first.patches[1].get_linewidth()
    light, dark = second.patches[1].get_facecolor(), second.patches[0].get_facecolor()
    assert dark == colormaps["Oranges"](1.0) and sum(light) > sum(dark)
    assert bar.get_ylabel() == "attention of the own vehicle"


def test_a_piano_roll_has_a_bar_for_each_note():
    figure = plots.plot_piano_rolls([CHORALE, CHORALE[:1]], ["three", "one"])
    first, second = figure.axes
    bars = [(bar.get_x(), bar.get_width(), bar.get_y() + 0.4) for bar in first.patches]
    assert bars[-2:] == [(0.0, 0.5, 72.0), (0.5, 0.25, 74.0)]  # the soprano is on top
    assert texts(figure.legends[0].texts) == list(VOICES)
    assert len(first.patches) == 6 and len(second.patches) == 4
    assert (first.get_title(), second.get_xlabel()) == ("three", "quarters")


def test_boxes_are_drawn_over_scenes():
    objects = np.full((3, 5, 5), -1.0)
    objects[0, :2] = objects[1, :1] = [2, 0.5, 0.5, 0.2, 0.2]
    some = [[Detection(2, 0.75, np.array([0.5, 0.5, 0.5, 0.25]))], [], []]
    figure = plots.plot_boxes(np.zeros((3, 64, 64, 1)), some, objects, list("abcde"))
    panel = figure.axes[0]
    assert texts(panel.texts) == ["c 75%"]
    x, y = panel.lines[-1].get_data()
    assert (min(x), max(x), min(y), max(y)) == (15.5, 47.5, 23.5, 39.5)
    assert [len(axes.lines) for axes in figure.axes[:3]] == [2 + 1, 1, 0]  # the boxes of both


def test_bars_of_outcomes_are_shares_and_the_frequent_types_come_first():
    outcomes = {"a": {"right": 1, "missed": 1}, "b": {"right": 6, "other type": 2}}
    (panel,) = plots.plot_outcomes({**outcomes, "c": {"missed": 1}}, most=2).axes
    assert labels(panel.yaxis) == ["b (8)", "a (2)"]
    widths = {bar.get_label(): [box.get_width() for box in bar] for bar in panel.containers}
    expected = {"right": [75, 50], "other type": [25, 0], "other words": [0, 0], "missed": [0, 50]}
    assert widths == expected

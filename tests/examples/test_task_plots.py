"""Figures of the tasks, and errors for invalid arguments."""

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from support import plots
from support.plots import Panel
from support.plots.words import DARKEST
from support.sets.trees import read_trees

LABELS = ["cat", "dog", "bird"]
PAST, TRUTH = np.arange(10.0).reshape(5, 2), np.arange(6.0).reshape(3, 2)
DRAW = np.random.default_rng(5)
MAPS = DRAW.random((2, 3, 7, 5)).astype("float32")  # 2 pictures, 3 maps
NAMES = ["mean", "head 1", "head 2"]
FRAMES = DRAW.normal(size=(17, 5))


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


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
        for found, values in zip(others, (TRUTH, *forecasts.values()), strict=True):
            np.testing.assert_array_equal(found, ([0, 1, 2], values[:, number]))
    assert [text.get_text() for text in figure.legends[0].texts] == ["truth", *forecasts]


def test_rows_and_columns_of_a_matrix_have_their_labels():
    texts = ["a $1 cat", "b", "x " * 30], ["eins", "zwei", "drei"]
    panel, colours = plots.plot_matrix(np.eye(3), *texts, "cosine").axes
    *rows, long = labels(panel.yaxis)
    assert rows == [r"a \$1 cat", "b"]
    assert long.endswith("…") and len(long) <= 45
    assert labels(panel.xaxis) == ["eins", "zwei", "drei"]
    np.testing.assert_array_equal(panel.images[0].get_array(), np.eye(3))
    assert colours.get_ylabel() == "cosine"


def test_parts_of_a_matrix_have_one_scale_and_cells_of_one_size():
    parts = [(np.zeros((2, 3)), ["a", "b", "c"]), (np.full((2, 1), 0.5), ["d"])]
    first, second, _ = plots.plot_matrices(parts, ["x", "y"], "share").axes
    assert labels(second.xaxis) == ["d"] and first.get_xlim() == second.get_xlim()
    assert [panel.images[0].get_clim() for panel in (first, second)] == [(0, 0.5)] * 2


def test_each_panel_has_its_labels_scales_and_lines():
    first = Panel("time", "n", "ms", [1, 2], {"a": [3, 4], "b": [5, 6]}, True, True)
    second = Panel("share", "distance", "right", [1, 2, 3], {"b": [1, 1, 0]})
    left, right = plots.plot_panels([first, second]).axes
    assert (left.get_title(), left.get_xlabel(), left.get_ylabel()) == ("time", "n", "ms")
    assert (left.get_xscale(), left.get_yscale()) == ("log", "log")
    assert (right.get_xscale(), right.get_yscale()) == ("linear", "linear")
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["a", "b"]
    assert right.lines[0].get_ydata().tolist() == [1, 1, 0]
    colours = [line.get_color() for line in (*left.lines, *right.lines)]
    assert colours[1] == colours[2] != colours[0]  # one colour per name


@pytest.mark.parametrize("shape", [(2, 28, 20), (2, 28, 20, 1), (2, 28, 20, 3)])
def test_each_picture_has_a_row_and_each_map_a_column(shape):
    pictures = DRAW.random(shape)
    figure = plots.plot_picture_attention(pictures, MAPS, ["boot", "bag"], NAMES)
    panels = np.array(figure.axes[:8]).reshape(2, 4)
    assert [panel.get_title() for panel in panels[0]] == ["picture", *NAMES]
    assert [row[0].get_ylabel() for row in panels] == ["boot", "bag"]
    for row, picture, maps in zip(panels, pictures, MAPS, strict=True):
        for panel in row:
            shown = np.squeeze(panel.images[0].get_array())
            np.testing.assert_array_equal(shown, picture.squeeze())
        for panel, weights in zip(row[1:], maps, strict=True):
            shown = panel.images[1]
            np.testing.assert_allclose(shown.get_array(), weights / weights.max())
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
    assert sound.images[0].get_extent() == [0, 0.5, 0, 4] and sound.images[0].origin == "lower"
    np.testing.assert_array_equal(sound.images[0].get_array(), FRAMES.T)
    assert attention.get_shared_x_axes().joined(sound, attention)
    np.testing.assert_array_equal(attention.images[0].get_array(), weights)
    assert attention.images[0].get_extent() == [0, 0.5, 2.5, -0.5]
    assert labels(attention.yaxis) == [r"\$", "b", "</s>"]
    (alone,) = plots.plot_spectrogram(FRAMES, 0.5, 4000).axes
    assert attention.get_xlabel() == alone.get_xlabel() == "time in s"


def test_sounds_share_time_and_colours():
    figure = plots.plot_sounds({"noisy": FRAMES, "clean": FRAMES - 1}, 0.5, 4000)
    assert [panel.get_title() for panel in figure.axes] == ["noisy", "clean"]
    limits = FRAMES.min() - 1, FRAMES.max()
    for panel, frames in zip(figure.axes, (FRAMES, FRAMES - 1), strict=True):
        image = panel.images[0]
        np.testing.assert_array_equal(image.get_array(), frames.T)
        assert image.get_clim() == pytest.approx(limits)
        assert image.get_extent() == [0, 0.5, 0, 4] and image.origin == "lower"


def test_words_of_a_tree_stand_in_a_row_and_phrases_above():
    trees = read_trees("(S (NP (DT the) (NN dog)) (VP (VBZ sleeps)))\n(NP (NN $5))")
    first, second = plots.plot_trees(trees, ["by people", "by the model"], "a sentence").axes
    words = {"the": (0, 0), "dog": (1, 0), "sleeps": (2, 0)}
    places = {text.get_text(): text.get_position() for text in first.texts}
    assert places == {**words, "NP": (0.5, 1), "VP": (2, 1), "S": (1.25, 2)}
    assert [text.get_text() for text in second.texts] == ["$5", "NP"]
    assert [panel.get_title() for panel in (first, second)] == ["by people", "by the model"]
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
    assert [text.get_text() for text in panel.texts] == ["good", "not", " bad", "price", "$5"]
    blues = colormaps["Blues"]
    shades = [box.get_facecolor() for box in panel.patches]
    assert shades == [blues(DARKEST), blues(DARKEST / 4), blues(DARKEST)]
    # Each box has the position and length of its token.
    starts = [(box.get_x(), box.get_width()) for box in panel.patches]
    assert starts == [(7, 3), (10, 4), (7, 2)]


TREE = read_trees("(NP (NN a))")
ONES, EYE = np.ones((2, 28, 28)), np.eye(3)
SERIES, ANIMALS = ["load", "oil"], ["boot", "bag"]


@pytest.mark.parametrize(
    "plot, arguments, message",
    [
        ("confusion", ([0, 3], [0, 1], LABELS), "is not one of the 3 labels"),
        ("confusion", (["cat", "cow"], [0, 1], LABELS), "is not one of the 3 labels"),
        ("confusion", ([0, -1], [0, 1], LABELS), "is not one of the 3 labels"),
        ("confusion", ([0], [0, 1], LABELS), "one class per example"),
        ("confusion", ([], [], LABELS), "one class per example"),
        ("forecast", (PAST[:, :1], TRUTH, {}, SERIES), "a column for each of"),
        ("forecast", (PAST, TRUTH[:, 0], {}, SERIES), "a column for each of"),
        ("forecast", (PAST, TRUTH, {"a": TRUTH[1:]}, SERIES), r"at most 4 arrays .* \(3, 2\)"),
        ("forecast", (PAST, TRUTH, dict.fromkeys("abcde", TRUTH), SERIES), "at most 4 arrays"),
        ("matrix", (EYE, ["a", "b"], LABELS, ""), r"\(2, 3\), by the number .* \(3, 3\)"),
        ("matrices", ([(np.ones((1, 1)), ["d"])], ["x", "y"], ""), r"\(2, 1\), .* \(1, 1\)"),
        ("panels", ([],), "There must be a panel"),
        ("panels", ([Panel("t", "x", "y", [1], {})],), "lines in each"),
        ("panels", ([Panel("t", "x", "y", [1, 2], {"a": [3]})],), "'a' has 1 numbers y for 2"),
        ("panels", ([Panel("t", "x", "y", [1], dict.fromkeys("abcdefghi", [1]))],), "9 names"),
        ("picture_attention", (ONES[:, 0], MAPS, ANIMALS, NAMES), "pictures must be"),
        ("picture_attention", (ONES, MAPS[0], ANIMALS, NAMES), "pictures must be"),
        ("picture_attention", (ONES[:1], MAPS, ANIMALS, NAMES), "the numbers do not fit"),
        ("picture_attention", (ONES, MAPS[:, 1:], ANIMALS, NAMES), "the numbers do not fit"),
        ("sounds", ({}, 0.5, 4000), "at least one sound"),
        ("spectrogram", (FRAMES[0], 0.5, 4000, None, ["a", "b"]), "there are 2 tokens"),
        ("spectrogram", (FRAMES, 0.5, 4000, np.ones((3, 7)), ["a", "b"]), "there are 2 tokens"),
        ("spectrogram", (FRAMES, 0.5, 4000, np.ones(2), ["a", "b"]), "there are 2 tokens"),
        ("trees", (TREE, []), "a title for each"),
        ("trees", (TREE, ["a", "b"]), "a title for each"),
        ("trees", ([], []), "one or more trees"),
        ("words", ([], [], []), "a weight for each token"),
        ("words", ([["a"]], [[1, 2]], ["x"]), "a weight for each token"),
        ("words", ([["a"]], [[1]], []), "a weight for each token"),
        ("words", ([["a"]], [], ["x"]), "a weight for each token"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(plot, arguments, message):
    with pytest.raises(ValueError, match=message):
        getattr(plots, f"plot_{plot}")(*arguments)


def test_vehicles_are_shaded_by_their_weights_on_one_scale():
    places = [np.array([[100.0, 4], [130, 8], [60, 0]]), np.array([[0.0, 0], [20, 0]])]
    weights = [np.array([0.1, 0.5, 0.4]), np.array([0.8, 0.2])]
    figure = plots.plot_roads(places, weights, ["right", "slower"], title="road")
    first, second, bar = figure.axes
    assert [first.get_title(), second.get_title()] == ["right", "slower"]
    assert [one.get_x() for one in first.patches] == [-2.5, 27.5, -42.5]
    assert first.patches[0].get_linewidth() > first.patches[1].get_linewidth()
    light, dark = second.patches[1].get_facecolor(), second.patches[0].get_facecolor()
    assert dark == colormaps["Oranges"](1.0) and sum(light) > sum(dark)
    assert bar.get_ylabel() == "attention of the own vehicle"
    assert figure.get_suptitle() == "road"
    with pytest.raises(ValueError, match="positions"):
        plots.plot_roads(places, weights[:1], ["right", "slower"])

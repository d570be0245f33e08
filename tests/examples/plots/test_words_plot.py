"""Words shaded by weights: as dark as their share of the largest weight."""

import pytest

pytest.importorskip("matplotlib")

from matplotlib import colormaps  # noqa: E402
from support import plots  # noqa: E402
from support.plots.words import DARKEST  # noqa: E402


def test_the_largest_weight_of_each_sentence_is_darkest(tmp_path):
    sentences, weights = [["not", " bad"], ["$5"]], [[0.8, 0.2], [0.01]]
    figure = plots.plot_words(sentences, weights, ["good", "price"], "opinions")
    panel = figure.axes[0]
    assert [text.get_text() for text in panel.texts] == ["good", "not", " bad", "price", "$5"]
    shades = [box.get_facecolor() for box in panel.patches]
    blues = colormaps["Blues"]
    assert shades == [blues(DARKEST), blues(DARKEST / 4), blues(DARKEST)]
    # A box begins where its token does, and is as long.
    starts = [(box.get_x(), box.get_width()) for box in panel.patches]
    assert starts == [(7, 3), (10, 4), (7, 2)]
    figure.savefig(tmp_path / "words.png")
    assert (tmp_path / "words.png").read_bytes().startswith(b"\x89PNG")


def test_a_sentence_without_weights_is_drawn():
    assert plots.plot_words([["a"]], [[0.0]], [""]).axes[0].patches


@pytest.mark.parametrize(
    "sentences, weights, labels",
    [([], [], []), ([["a"]], [[1, 2]], ["x"]), ([["a"]], [[1]], []), ([["a"]], [], ["x"])],
)
def test_what_does_not_fit_is_told(sentences, weights, labels):
    with pytest.raises(ValueError, match="a weight for each token"):
        plots.plot_words(sentences, weights, labels)

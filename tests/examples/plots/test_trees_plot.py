"""Trees are drawn with their words below and their phrases above."""

import pytest

pytest.importorskip("tensorflow")
pytest.importorskip("matplotlib")

from support import plots  # noqa: E402
from support.sets.trees import read_trees  # noqa: E402


def test_words_from_left_to_right_and_phrases_above(tmp_path):
    trees = read_trees("(S (NP (DT the) (NN dog)) (VP (VBZ sleeps)))\n(NP (NN $5))")
    figure = plots.plot_trees(trees, ["by people", "by the model"], "a sentence")
    places = {text.get_text(): text.get_position() for text in figure.axes[0].texts}
    assert places == {
        "the": (0, 0), "dog": (1, 0), "sleeps": (2, 0), "NP": (0.5, 1), "VP": (2, 1), "S": (1.25, 2)
    }  # fmt: skip
    assert [text.get_text() for text in figure.axes[1].texts] == ["$5", "NP"]
    assert [panel.get_title() for panel in figure.axes] == ["by people", "by the model"]
    assert len(figure.axes[0].lines) == 5  # one from each node to each of its children
    figure.savefig(tmp_path / "trees.png")
    assert (tmp_path / "trees.png").read_bytes().startswith(b"\x89PNG")


def test_lines_do_not_cross():
    """A short subject, and a long phrase behind the verb."""
    text = "(S (NP (PRP He)) (VP (VBD said) (SBAR (S (NP (NNS dogs)) (VP (VBP bark))))) (. .))"
    lines = plots.plot_trees(read_trees(text), [""]).axes[0].lines
    for bar in lines:
        (begin, end, _), (height, _, _) = bar.get_data()
        begin, end = sorted((begin, end))
        for other in lines:
            (_, x, _), (_, top, bottom) = other.get_data()
            assert not (begin < x < end and bottom < height < top)


@pytest.mark.parametrize("titles", [[], ["a", "b"]])
def test_a_title_for_each_tree(titles):
    with pytest.raises(ValueError, match="a title for each"):
        plots.plot_trees(read_trees("(NP (NN a))"), titles)
    with pytest.raises(ValueError, match="one or more trees"):
        plots.plot_trees([], [])

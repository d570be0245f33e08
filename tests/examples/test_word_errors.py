"""The word error rate: edits by hand."""

import pytest
from support.scores.word_errors import word_error_rate


@pytest.mark.parametrize(
    "text, edits",
    [
        ("a b c", 0),
        ("a c", 1),  # one is missing
        ("a b b c", 1),  # one is too many
        ("a x c", 1),  # one is wrong
        ("b c a", 2),
        ("", 3),
        ("x y z a b c", 3),
        ("c b a", 2),
    ],
)
def test_edits_are_counted(text, edits):
    assert word_error_rate([text], ["a b c"]) == pytest.approx(edits / 3)


def test_words_are_counted_over_all_texts():
    assert word_error_rate(["a", "b c d"], ["x", "b c d"]) == 1 / 4


@pytest.mark.parametrize(
    "texts, references, problem",
    [(["a"], [], "1 texts, but 0 references"), (["a"], [" "], "no word to measure by")],
)
def test_nothing_to_measure_is_told(texts, references, problem):
    with pytest.raises(ValueError, match=problem):
        word_error_rate(texts, references)

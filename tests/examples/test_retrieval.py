"""Recall@k by hand."""

import numpy as np
import pytest
from support.scores.retrieval import recall_at

SCORES = np.array([[0.9, 0.1, 0.2], [0.8, 0.7, 0.1], [0.5, 0.6, 0.4]])


def test_recall_in_both_directions():
    # Ranks of the right one: 1, 2, 3 along the rows, 1, 1, 1 along the columns.
    assert [recall_at(SCORES, k) for k in (1, 2, 3)] == pytest.approx([1 / 3, 2 / 3, 1])
    assert recall_at(SCORES.T) == 1


def test_equal_scores_are_no_success():
    assert recall_at(np.ones((3, 3))) == 0
    assert recall_at(np.ones((3, 3)), k=3) == 1


@pytest.mark.parametrize(
    ("scores", "k", "told"),
    [
        (np.ones((2, 3)), 1, r"\(N, N\), but it is \(2, 3\)"),
        (np.ones((0, 0)), 1, r"\(N, N\)"),
        (np.full((2, 2), np.nan), 1, "NaN or infinite"),
        (np.ones((2, 2)), 0, "at least 1, but it is 0"),
    ],
)
def test_what_does_not_fit_is_told(scores, k, told):
    with pytest.raises(ValueError, match=told):
        recall_at(scores, k)

"""Measures of retrieval: how often the right candidate is found."""

import numpy as np


def recall_at(scores, k=1):
    """Computes recall@k: the share of queries whose own candidate is among the best k.

    Args:
        scores: (N, N) numbers; row i has the scores of query i, and candidate i belongs to it. For
            the other direction pass `scores.T`.
        k: int. Defaults to 1.

    Returns:
        Float in [0, 1]. A candidate with the same score as the right one counts as above it, so
        that equal scores are not a success.

    Raises:
        ValueError: `scores` is empty, not square or not finite, or `k` is less than 1.

    Example:

    >>> recall_at([[0.9, 0.1], [0.8, 0.7]])
    0.5
    """
    scores = np.asarray(scores)
    if scores.ndim != 2 or len(set(scores.shape)) > 1 or not scores.size:
        raise ValueError(f"scores must have shape (N, N), but it is {scores.shape}.")
    if not np.isfinite(scores).all():
        raise ValueError("scores must be finite, but some are NaN or infinite.")
    if k < 1:
        raise ValueError(f"k must be at least 1, but it is {k}.")
    ranks = (scores >= np.diagonal(scores)[:, None]).sum(axis=1)  # 1 is best
    return float((ranks <= k).mean())

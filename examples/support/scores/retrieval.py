"""Measures of retrieval: how often the right one of many is found."""

import numpy as np


def recall_at(scores, k=1):
    """Recall@k: the share of queries whose own candidate is among the k that score highest.

    Args:
        scores: (N, N) numbers; row i has the scores of query i, and candidate i belongs to it. For
            the other direction pass `scores.T`.
        k: int. Defaults to 1.

    Returns:
        Float in [0, 1]. A candidate that scores as high as the right one counts as above it, so
        that equal scores are no success.

    Raises:
        ValueError: `scores` is not square or empty, not finite, or `k` is less than 1.

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

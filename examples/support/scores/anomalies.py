"""Measures of anomaly scores over all thresholds, and simple scores.

Shapes: S steps.
"""

import numpy as np


def anomaly_scores(scores, labels):
    """Computes the area under the ROC curve and the best F1 of all thresholds, step by step.

    The area is the probability that a step of an anomaly has a higher score than another step;
    equal scores count one half. Random scores have 0.5. The best F1 is an upper limit, because in
    practice a threshold must be chosen without labels.

    Args:
        scores: (S,) numbers, high for anomalies.
        labels: (S,) booleans.

    Returns:
        Dict with "roc auc" and "best f1".

    Raises:
        ValueError: shapes differ, a score is not finite, or all labels are equal.

    Example:

    >>> anomaly_scores([0.1, 0.4, 0.3, 0.9], [False, False, True, True])
    {'roc auc': 0.75, 'best f1': 0.8}
    """
    scores, labels = np.asarray(scores, float), np.asarray(labels, bool)
    count = int(labels.sum())
    if scores.shape != labels.shape or scores.ndim != 1 or not np.isfinite(scores).all():
        raise ValueError(
            f"There must be a finite score and a label for each step, but the shapes are "
            f"{scores.shape} and {labels.shape}, and {np.isfinite(scores).sum()} scores are finite."
        )
    if count in (0, len(labels)):
        raise ValueError(
            f"{count} of {len(labels)} steps are anomalies, but scores need anomalies and others."
        )
    order = np.argsort(-scores, kind="stable")
    # Equal scores are on one side of a threshold.
    last = np.append(np.diff(scores[order]) < 0, True)
    true = np.append(0, np.cumsum(labels[order])[last])
    found = np.append(0, np.flatnonzero(last) + 1)
    area = np.trapezoid(true, found - true) / (count * (len(labels) - count))
    return {"roc auc": float(area), "best f1": float(np.max(2 * true / (found + count)))}


def moving_mean(values, width):
    """Returns the mean over `width` steps around each step, fewer at the ends: float (S,)."""
    sums = np.append(0.0, np.cumsum(values))
    steps = np.arange(len(values)) - width // 2
    first, end = np.maximum(steps, 0), np.minimum(steps + width, len(values))
    return (sums[end] - sums[first]) / (end - first)


def moving_z_score(series, width):
    """Returns each step's distance from the mean of previous steps, in standard deviations.

    Args:
        series: (S, C).
        width: int, number of previous steps, at least 2. The first steps have fewer; the first two
            score 0.

    Returns:
        float (S,), the mean over the channels.

    Example:

    >>> moving_z_score(np.array([[0.0], [2], [0], [2], [9]]), 4).round(2)
    array([0.  , 0.  , 1.  , 1.41, 8.  ])
    """
    if width < 2:
        raise ValueError(f"width must be at least 2, got {width}.")
    found = np.zeros(len(series))
    for step in range(2, len(series)):
        before = series[max(0, step - width) : step]
        deviation = np.maximum(before.std(axis=0), 1e-3)
        found[step] = np.mean(np.abs(series[step] - before.mean(axis=0)) / deviation)
    return found

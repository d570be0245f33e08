"""Synthetic rows in which a model must recall one token over a distance."""

import numpy as np


def recall_rows(rng, rows, length, distances, num_values=16):
    """Draws rows of values, one of them marked, which a model predicts at the last position.

    Such rows measure the distance over which a model learns to relate two positions, the third of
    the paper's reasons for self-attention (section 4).

    Args:
        rng: `numpy.random.Generator`.
        rows: int, N.
        length: int, L.
        distances: sequence of int, from which the distance of the marked position is drawn.
        num_values: int, V. Defaults to 16.

    Returns:
        Ids (N, L) int32: values are 1 ... V, and V + 1 ... 2 V if marked; labels (N,), the marked
        value in 0 ... V - 1; distances (N,).

    Raises:
        ValueError: a distance is not in [0, `length`).

    Example:

    >>> ids, labels, distances = recall_rows(np.random.default_rng(1), 1, 5, [3])
    >>> bool(ids[0, 1] == labels[0] + 17)
    True
    """
    if not all(0 <= distance < length for distance in distances):
        raise ValueError(f"distances must be in [0, {length}), got {list(distances)}.")
    ids = rng.integers(1, num_values + 1, (rows, length), dtype=np.int32)
    drawn = rng.choice(np.asarray(distances), rows)
    marked = np.arange(rows), length - 1 - drawn
    labels = ids[marked] - 1
    ids[marked] += num_values
    return ids, labels, drawn

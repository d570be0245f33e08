"""Confusion matrix of a classifier.

Shapes: N examples, C classes.
"""

import numpy as np

LEGIBLE = 12  # maximum number of classes for numbers in the cells


def plot_confusion(true, predicted, labels, title=None):
    """Draws a confusion matrix: a row per true class, a column per predicted one.

    The colour of a cell is its share of the row, so that rare classes count as much as frequent
    ones. With up to 12 classes the share is also written into the cell, in percent.

    Args:
        true: N classes, as numbers that index `labels`, or as labels.
        predicted: N classes, likewise.
        labels: C strings.
        title: str or `None`.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: numbers of classes differ, there are none, or a class is not in `labels`.

    Example:

    >>> figure = plot_confusion([0, 0, 1], ["cat", "dog", "dog"], ["cat", "dog"])
    >>> figure.axes[0].get_ylabel()
    'true class'
    """
    from matplotlib.figure import Figure

    shares = _shares(_numbers(true, labels), _numbers(predicted, labels), len(labels))
    count = len(labels)
    side = 1.5 + (0.55 if count <= LEGIBLE else 0.2) * count
    # Cells are squares; "constrained" would cut the labels around them.
    figure = Figure(figsize=(side + 1, side), layout="compressed")
    panel = figure.subplots()
    image = panel.imshow(shares, vmin=0, vmax=1, cmap="Blues")
    figure.colorbar(image, label="share of the true class", shrink=0.8)
    size = 9 if count <= LEGIBLE else 6
    panel.set_xticks(range(count), labels, rotation=90, fontsize=size)
    panel.set_yticks(range(count), labels, fontsize=size)
    panel.set(xlabel="predicted class", ylabel="true class")
    if count <= LEGIBLE:
        for row, column in zip(*np.nonzero(shares > 0.005), strict=True):
            share = shares[row, column]
            colour = "white" if share > 0.5 else "black"
            panel.text(
                column, row, f"{share:.0%}"[:-1], color=colour, fontsize=8, ha="center", va="center"
            )
    figure.suptitle(title)
    return figure


def _numbers(classes, labels):
    numbers = {label: number for number, label in enumerate(labels)}
    found = [numbers.get(one, one) if isinstance(one, str) else int(one) for one in classes]
    wrong = [one for one in found if isinstance(one, str) or not 0 <= one < len(labels)]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is not one of the {len(labels)} labels {list(labels)}.")
    return found


def _shares(true, predicted, count):
    """Returns the shares of predictions for each true class, (C, C); rows sum to 1 or 0."""
    if len(true) != len(predicted) or not true:
        raise ValueError(
            "true and predicted must hold one class per example, but there are "
            f"{len(true)} and {len(predicted)}."
        )
    counts = np.zeros((count, count))
    np.add.at(counts, (true, predicted), 1)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)

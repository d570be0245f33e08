"""Heat maps of a number for each pair of two lists of texts, such as similarities."""

import numpy as np


def plot_matrix(values, row_labels, column_labels, label, title=None):
    """Draws a matrix as a heat map, with a text at each row and column.

    Args:
        values: (R, C) numbers.
        row_labels: R strings, from top to bottom.
        column_labels: C strings, from left to right.
        label: str, the meaning of the colours, such as "cosine similarity".
        title: str or `None`.

    Returns:
        `matplotlib.figure.Figure`. Labels of more than 45 characters are cut.

    Raises:
        ValueError: `values` does not fit the labels.

    Example:

    >>> texts = ["eine Katze", "ein Hund"]
    >>> figure = plot_matrix([[0.9, 0.1]], ["a cat"], texts, "cosine similarity")
    >>> [axis.get_ylabel() for axis in figure.axes]
    ['', 'cosine similarity']
    """
    figure = plot_matrices([(values, column_labels)], row_labels, label)
    figure.axes[0].set_title(title)
    return figure


def plot_matrices(parts, row_labels, label):
    """Draws the parts of a wide matrix below each other, like the lines of a text, in one scale.

    Args:
        parts: list of pairs of values (R, C) and C strings, from left to right.
        row_labels: R strings, from top to bottom.
        label: str, the meaning of the colours.

    Returns:
        `matplotlib.figure.Figure`. Labels of more than 45 characters are cut.

    Raises:
        ValueError: the values of a part do not fit the labels.

    Example:

    >>> parts = [([[0.9, 0.1]], ["Who", "is"]), ([[0.2]], ["it?"])]
    >>> [len(axis.get_xticks()) for axis in plot_matrices(parts, ["Ben"], "share").axes[:2]]
    [2, 1]
    """
    from matplotlib.figure import Figure

    parts = [(np.asarray(values), list(labels)) for values, labels in parts]
    for values, labels in parts:
        if values.shape != (len(row_labels), len(labels)):
            raise ValueError(
                f"values must have shape ({len(row_labels)}, {len(labels)}), by the number of "
                f"labels, but its shape is {values.shape}."
            )
    parts = [(values, [shortened(text) for text in labels]) for values, labels in parts]
    row_labels = [shortened(text) for text in row_labels]
    # Inches: the cells, and the longest label on each side.
    heights = [0.6 + 0.19 * len(row_labels) + 0.075 * max(map(len, labels)) for _, labels in parts]
    columns = max(len(labels) for _, labels in parts)
    width = 1.4 + 0.19 * columns + 0.075 * max(map(len, row_labels))
    figure = Figure(figsize=(width, max(sum(heights), 2.5)), layout="constrained")
    panels = figure.subplots(len(parts), squeeze=False, height_ratios=heights)[:, 0]
    every = np.concatenate([values.ravel() for values, _ in parts])
    for panel, (values, labels) in zip(panels, parts, strict=True):
        scale = {"vmin": every.min(), "vmax": every.max()}
        image = panel.imshow(values, cmap="viridis", aspect="equal", **scale)
        panel.set_xlim(-0.5, columns - 0.5)  # cells of one size in all parts
        panel.set_xticks(range(len(labels)), labels, rotation=90)
        panel.set_yticks(range(len(row_labels)), row_labels)
        panel.tick_params(labelsize=7, length=0)
        if len(parts) > 1:
            panel.spines[:].set_visible(False)
    figure.colorbar(image, ax=list(panels), shrink=0.8).set_label(label)
    return figure


def shortened(text, longest=45):
    """Cuts a text at `longest` characters, and escapes "$" for labels of Matplotlib."""
    text = text if len(text) <= longest else text[: longest - 1].rstrip() + "…"
    return text.replace("$", r"\$")

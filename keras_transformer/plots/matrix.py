"""A number for each pair of two lists of texts: similarities, probabilities, counts."""

import numpy as np


def plot_matrix(values, row_labels, column_labels, label, title=None):
    """Draws a matrix as a heat map, with a text at each row and column.

    Args:
        values: (R, C) numbers.
        row_labels: R strings, from top to bottom.
        column_labels: C strings, from left to right.
        label: str, what the colours stand for, such as "cosine similarity".
        title: str or `None`.

    Returns:
        `matplotlib.figure.Figure`. Labels of more than 40 characters are cut.

    Raises:
        ValueError: `values` does not fit the labels.

    Example:

    >>> texts = ["eine Katze", "ein Hund"]
    >>> figure = plot_matrix([[0.9, 0.1]], ["a cat"], texts, "cosine similarity")
    >>> [axis.get_ylabel() for axis in figure.axes]
    ['', 'cosine similarity']
    """
    from matplotlib.figure import Figure

    values = np.asarray(values)
    if values.shape != (len(row_labels), len(column_labels)):
        raise ValueError(
            f"values must have shape ({len(row_labels)}, {len(column_labels)}), by the number of "
            f"labels, but its shape is {values.shape}."
        )
    rows, columns = values.shape
    row_labels, column_labels = (
        [shortened(text) for text in labels] for labels in (row_labels, column_labels)
    )
    # Inches: the cells, and the longest label on each side.
    width, height = (0.075 * max(map(len, labels)) for labels in (row_labels, column_labels))
    size = (1.4 + 0.19 * columns + width, 0.7 + 0.19 * rows + height)
    figure = Figure(figsize=size, layout="constrained")
    panel = figure.subplots()
    image = panel.imshow(values, cmap="viridis", aspect="equal")
    panel.set_xticks(range(columns), column_labels, rotation=90)
    panel.set_yticks(range(rows), row_labels)
    panel.tick_params(labelsize=7, length=0)
    figure.colorbar(image, shrink=0.8).set_label(label)
    panel.set_title(title)
    return figure


def shortened(text, longest=40):
    """The text, cut at `longest` characters, as a label of Matplotlib: "$" starts no formula."""
    text = text if len(text) <= longest else text[: longest - 1].rstrip() + "…"
    return text.replace("$", r"\$")

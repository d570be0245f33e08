"""How alike things of two kinds are, such as texts in two languages."""

import numpy as np


def plot_similarity(scores, row_labels, column_labels, title=None, label="cosine similarity"):
    """Draws a matrix of similarities as a heat map with a text at each row and column.

    Args:
        scores: (R, C) numbers.
        row_labels: R strings, from top to bottom.
        column_labels: C strings, from left to right.
        title: str or `None`.
        label: str, what the colours stand for.

    Returns:
        `matplotlib.figure.Figure`. Labels of more than 40 characters are cut.

    Raises:
        ValueError: `scores` does not fit the labels.

    Example:

    >>> figure = plot_similarity([[0.9, 0.1]], ["a cat"], ["eine Katze", "ein Hund"])
    >>> [axis.get_ylabel() for axis in figure.axes]
    ['', 'cosine similarity']
    """
    from matplotlib.figure import Figure

    scores = np.asarray(scores)
    if scores.shape != (len(row_labels), len(column_labels)):
        raise ValueError(
            f"scores must have shape ({len(row_labels)}, {len(column_labels)}), by the number of "
            f"labels, but its shape is {scores.shape}."
        )
    rows, columns = scores.shape
    figure = Figure(figsize=(3.8 + 0.19 * columns, 3.2 + 0.19 * rows), layout="constrained")
    panel = figure.subplots()
    image = panel.imshow(scores, cmap="viridis", aspect="equal")
    panel.set_xticks(range(columns), [shortened(text) for text in column_labels], rotation=90)
    panel.set_yticks(range(rows), [shortened(text) for text in row_labels])
    panel.tick_params(labelsize=7, length=0)
    figure.colorbar(image, shrink=0.7).set_label(label)
    panel.set_title(title)
    return figure


def shortened(text, longest=40):
    """The text, cut at `longest` characters, as a label of Matplotlib: "$" starts no formula."""
    text = text if len(text) <= longest else text[: longest - 1].rstrip() + "…"
    return text.replace("$", r"\$")

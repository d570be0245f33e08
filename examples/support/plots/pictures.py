"""Pictures, and maps of a model's attention to them.

Shapes: N pictures or rows of them, M maps or pictures per row, (rows, columns) of patches.
"""

import numpy as np


def plot_picture_attention(pictures, maps, captions, names, title=None):
    """Draws pictures, and beside each its attention maps: brighter patches have more weight.

    Each map has its own scale, from 0 to its largest weight, because many patches have small
    weights.

    Args:
        pictures: (N, height, width) or (N, height, width, 1) in grey, (N, height, width, 3) in
            colours, from 0 to 1.
        maps: (N, M, rows, columns), weights of the patches.
        captions: N strings, beside the pictures.
        names: M strings, above the maps.
        title: str or `None`.

    Returns:
        `matplotlib.figure.Figure`, a row per picture, M + 1 columns.

    Raises:
        ValueError: shapes do not fit.

    Example:

    >>> pictures, maps = np.ones((2, 28, 28)), np.ones((2, 4, 7, 7)) / 49
    >>> names = [f"head {head}" for head in range(1, 5)]
    >>> len(plot_picture_attention(pictures, maps, ["a", "b"], names).axes)
    11
    """
    from matplotlib.figure import Figure

    pictures, maps = np.asarray(pictures), np.asarray(maps)
    if pictures.ndim not in (3, 4) or maps.ndim != 4:
        raise ValueError(
            "pictures must be (N, height, width) or (N, height, width, channels), and maps (N, M, "
            f"rows, columns), but their shapes are {pictures.shape} and {maps.shape}."
        )
    if not len(pictures) == len(captions) == len(maps) or maps.shape[1] != len(names):
        raise ValueError(
            f"There are {len(pictures)} pictures with {len(captions)} captions, and {len(names)} "
            f"names for maps of shape {maps.shape}: the numbers do not fit."
        )
    count, columns = len(pictures), len(names) + 1
    figure = Figure(figsize=(1.2 * columns + 1.4, 1.2 * count + 0.5), layout="constrained")
    panels = figure.subplots(count, columns, squeeze=False)
    for row, picture, caption, weights in zip(panels, pictures, captions, maps, strict=True):
        height, width = picture.shape[:2]
        for panel in row:
            panel.imshow(picture, cmap="gray", vmin=0, vmax=1)
            panel.set(xticks=[], yticks=[])
        row[0].set_ylabel(caption, rotation=0, ha="right", va="center", fontsize=8)
        for panel, weight in zip(row[1:], weights, strict=True):
            share = weight / max(float(weight.max()), np.finfo("float32").tiny)
            shown = panel.imshow(
                share,
                vmin=0,
                vmax=1,
                cmap="inferno",
                alpha=0.65,
                extent=(-0.5, width - 0.5, height - 0.5, -0.5),
            )
    for panel, name in zip(panels[0], ("picture", *names), strict=True):
        panel.set_title(name, fontsize=8)
    figure.colorbar(shown, ax=panels, label="weight / largest weight", shrink=0.8)
    figure.suptitle(title)
    return figure


def plot_picture_rows(rows, captions, names=()):
    """Draws rows of grey pictures.

    Args:
        rows: (N, M, height, width) from 0 to 1; NaN stays blank.
        captions: N strings, beside the rows.
        names: M strings above the columns, or none.

    Returns:
        `matplotlib.figure.Figure`, a row per caption.

    Raises:
        ValueError: shapes do not fit.

    Example:

    >>> figure = plot_picture_rows(np.zeros((1, 2, 14, 14)), ["a"], ["given", "drawn"])
    >>> [(axes.get_title(), axes.get_ylabel()) for axes in figure.axes]
    [('given', 'a'), ('drawn', '')]
    """
    from matplotlib.figure import Figure

    rows = np.asarray(rows)
    if rows.ndim != 4 or len(rows) != len(captions) or len(names) not in (0, rows.shape[1]):
        raise ValueError(
            f"rows must be (N, M, height, width), but they are {rows.shape}, with {len(captions)} "
            f"captions and {len(names)} names of columns."
        )
    count, columns = rows.shape[:2]
    figure = Figure(figsize=(0.7 * columns + 1.2, 0.75 * count + 0.3), layout="constrained")
    panels = figure.subplots(count, columns, squeeze=False)
    for row, pictures, caption in zip(panels, rows, captions, strict=True):
        row[0].set_ylabel(caption, rotation=0, ha="right", va="center", fontsize=8)
        for panel, picture in zip(row, pictures, strict=True):
            panel.imshow(picture, cmap="gray", vmin=0, vmax=1)
            panel.set(xticks=[], yticks=[], facecolor="#b0c4de")
    for panel, name in zip(panels[0], names, strict=False):
        panel.set_title(name, fontsize=8)
    return figure

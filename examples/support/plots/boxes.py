"""Scenes with predicted and true boxes."""

import numpy as np
from support.plots.panels import COLOURS


def plot_boxes(pixels, found, objects, names, columns=4):
    """Draws scenes; predicted boxes are solid, true ones are white and dotted.

    Args:
        pixels: (N, height, width, 1), from 0 to 1.
        found: list of N lists of `Detection`.
        objects: (N, M, 5), the class number (-1 for none) and box of each true object.
        names: sequence of str, the names of the classes. Six colours of classes repeat.
        columns: int, scenes per row. Defaults to 4.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: the numbers of scenes differ, or there is none.

    Example:

    >>> plot_boxes(np.zeros((1, 64, 64, 1)), [[]], [[[0, 0.5, 0.5, 0.2, 0.2]]], ["disc"]).axes[0]
    <Axes: >
    """
    from matplotlib.figure import Figure

    if not len(pixels) == len(found) == len(objects) > 0:
        raise ValueError(
            f"there must be scenes, and the same number of lists of detections and objects, but "
            f"there are {len(pixels)}, {len(found)} and {len(objects)}."
        )
    rows = -(-len(pixels) // columns)
    figure = Figure(figsize=(2.6 * columns, 2.6 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for panel in panels:
        panel.axis("off")
    for panel, scene, some, true in zip(panels, pixels, found, objects, strict=False):
        side = len(scene)
        panel.imshow(scene, cmap="gray", vmin=0, vmax=1)
        for label, *box in true:
            if label >= 0:
                _draw_box(panel, np.array(box) * side, color="white", linestyle=":")
        for one in some:
            colour = COLOURS[one.label % 6]  # without black and pale yellow
            left, top = _draw_box(panel, np.array(one.box) * side, color=colour)
            text = f"{names[one.label]} {one.score:.0%}"
            options = dict(facecolor=colour, edgecolor="none", pad=0.8)
            panel.text(left, top - 1, text, color="white", fontsize=6, bbox=options)
    return figure


def _draw_box(panel, box, **options):
    """Draws a box (middle x, middle y, width, height) in pixels; returns its left and top."""
    left, top = box[:2] - box[2:] / 2 - 0.5
    right, bottom = box[:2] + box[2:] / 2 - 0.5
    x, y = [left, right, right, left, left], [top, top, bottom, bottom, top]
    panel.plot(x, y, linewidth=1.5, **options)
    return left, top

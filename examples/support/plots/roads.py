"""Vehicles on a motorway, shaded by a model's attention to them.

Shapes: N scenes, V vehicles of one of them.
"""

import numpy as np

LENGTH, WIDTH = 5, 2  # of a vehicle in metres
LANE, LANES = 4, 3  # metres from middle to middle


def plot_roads(positions, weights, titles, label="attention of the own vehicle", title=None):
    """Draws scenes of a motorway with three lanes; the own vehicle has a thick blue edge.

    The colours of all scenes share one scale, from 0 to the largest weight of any vehicle. The
    own vehicle has the first row of a scene.

    Args:
        positions: N arrays (V, 2), metres along the road and across it, from the middle of the
            leftmost lane. The first position along the road is the origin of the axis.
        weights: N arrays (V,), at least 0.
        titles: N strings.
        label: str, names the weights. Defaults to "attention of the own vehicle".
        title: str or `None`.

    Returns:
        `matplotlib.figure.Figure`, with a panel for each scene and a colour bar.

    Raises:
        ValueError: there is no scene, or the numbers of scenes or vehicles differ.

    Example:

    >>> figure = plot_roads([[[0, 4], [30, 8]]], [[0.25, 0.75]], ["left"])
    >>> len(figure.axes[0].patches)
    2
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    pairs = zip(positions, weights, strict=False)
    if not len(positions) == len(weights) == len(titles) > 0 or any(
        np.shape(places) != (len(shares), 2) for places, shares in pairs
    ):
        raise ValueError(
            "Pass at least one scene, and for each a title, positions (V, 2) and V weights. Their "
            f"shapes are {[np.shape(one) for one in positions]} and "
            f"{[np.shape(one) for one in weights]}, and there are {len(titles)} titles."
        )
    largest = max(float(np.max(shares)) for shares in weights)
    scale = ScalarMappable(Normalize(0, largest or 1), colormaps["Oranges"])
    figure = Figure(figsize=(8, 1.15 * len(positions) + 0.7), layout="constrained")
    panels = figure.subplots(len(positions), 1, sharex=True, squeeze=False)[:, 0]
    along = np.concatenate([np.asarray(places)[:, 0] - places[0][0] for places in positions])
    for panel, places, shares, name in zip(panels, positions, weights, titles, strict=True):
        panel.set_title(name, fontsize=9)
        panel.set(xlim=(along.min() - 2 * LENGTH, along.max() + 2 * LENGTH))
        panel.set(yticks=[], facecolor="0.93")
        panel.set_ylim((LANES - 0.5) * LANE, -0.5 * LANE)  # the left lane is above
        for line in range(1, LANES):
            panel.axhline((line - 0.5) * LANE, color="white", linestyle=(0, (6, 6)))
        for number, ((x, y), share) in enumerate(zip(places, shares, strict=True)):
            edge = dict(edgecolor="0.3", linewidth=0.6)
            if number == 0:
                edge = dict(edgecolor="tab:blue", linewidth=2.5)
            corner = x - places[0][0] - LENGTH / 2, y - WIDTH / 2
            panel.add_patch(
                Rectangle(corner, LENGTH, WIDTH, facecolor=scale.to_rgba(share), **edge)
            )
    panels[-1].set_xlabel("metres ahead of the own vehicle; all drive to the right")
    figure.colorbar(scale, ax=list(panels), label=label)
    figure.suptitle(title)
    return figure

"""Several diagrams of lines on one page."""

from dataclasses import dataclass

# Okabe and Ito's colours, distinct for all kinds of colour vision.
COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#000000",
    "#F0E442",
)
MARKERS = "osD^vPX*"


@dataclass
class Panel:
    """One diagram.

    Attributes:
        title: str.
        x_label, y_label: str, the labels of the axes, with units.
        x: list of numbers.
        lines: dict from a line's name to its numbers y, one for each of `x`.
        x_log, y_log: bool, whether an axis is logarithmic, to base 2 and 10. Default to `False`.
    """

    title: str
    x_label: str
    y_label: str
    x: list
    lines: dict
    x_log: bool = False
    y_log: bool = False


def plot_panels(panels, columns=2):
    """Draws diagrams of lines side by side. A name has the same colour and marker in all of them.

    Args:
        panels: list of `Panel`, with at most eight names of lines.
        columns: int, diagrams per row. Defaults to 2.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: there is no panel, one has no lines, there are more than eight names, or a line
            has more or fewer numbers than `x`.

    Example:

    >>> panel = Panel("squares", "n", "n²", [1, 2, 3], {"exact": [1, 4, 9]})
    >>> [axes.get_ylabel() for axes in plot_panels([panel]).axes]
    ['n²']
    """
    from matplotlib.figure import Figure

    if not panels or not all(panel.lines for panel in panels):
        raise ValueError("There must be a panel, and lines in each.")
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    if len(names) > len(COLOURS):
        raise ValueError(f"There are colours for {len(COLOURS)} lines, but {len(names)} names.")
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.2 * columns, 3.9 * rows), layout="constrained")
    for number, panel in enumerate(panels, 1):
        axes = figure.add_subplot(rows, columns, number)
        for name, y in panel.lines.items():
            if len(y) != len(panel.x):
                raise ValueError(f"{name!r} has {len(y)} numbers y for {len(panel.x)} numbers x.")
            index = names.index(name)
            style = {"color": COLOURS[index], "marker": MARKERS[index], "markersize": 5}
            axes.plot(panel.x, y, label=name, **style)
        axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        if panel.x_log:
            axes.set_xscale("log", base=2)
        if panel.y_log:
            axes.set_yscale("log")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return figure

"""Time series with forecasts, attention weights or anomaly scores.

Shapes: S steps before the forecast, T steps of it, F series.
"""

import numpy as np

# Okabe and Ito's colours, distinct for all kinds of colour vision; the truth is black.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7")
STYLES = ("-", "--", "-.", ":")


def plot_forecast(past, truth, forecasts, names, unit="step", value=None, title=None):
    """Draws series with forecasts and the truth, one panel per series.

    Args:
        past: (S, F), the inputs of the models.
        truth: (T, F), the steps that followed.
        forecasts: dict from a model's name to (T, F); at most four.
        names: F strings, which label the panels' vertical axes.
        unit: str, the unit of a step, such as "hour".
        value: str or `None`, the label of the vertical axes, such as "kW".
        title: str or `None`.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: shapes do not fit, or there are more than four forecasts.

    Example:

    >>> past, truth = np.zeros((5, 2)), np.ones((3, 2))
    >>> figure = plot_forecast(past, truth, {"last value": truth * 0}, ["load", "oil"], "hour")
    >>> figure.axes[1].get_xlabel()
    'hours from the first that is forecast'
    """
    from matplotlib.figure import Figure

    past, truth = np.asarray(past), np.asarray(truth)
    forecasts = {name: np.asarray(forecast) for name, forecast in forecasts.items()}
    _check(past, truth, forecasts, names)
    figure = Figure(figsize=(8, 0.8 + 1.4 * len(names)), layout="constrained")
    panels = figure.subplots(len(names), 1, squeeze=False, sharex=True)[:, 0]
    before, after = np.arange(-len(past), 0), np.arange(len(truth))
    for number, (panel, name) in enumerate(zip(panels, names, strict=True)):
        panel.plot(before, past[:, number], color="black", linewidth=1)
        panel.plot(after, truth[:, number], color="black", linewidth=1, label="truth")
        styles = zip(forecasts.items(), COLOURS, STYLES, strict=False)
        for (model, forecast), colour, style in styles:
            panel.plot(after, forecast[:, number], style, color=colour, linewidth=1.5, label=model)
        panel.axvline(-0.5, color="0.7", linewidth=1)
        panel.set_ylabel(name)
        panel.margins(x=0)
    panels[-1].set_xlabel(f"{unit}s from the first that is forecast")
    lines, labels = panels[0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower center", ncols=len(labels))
    figure.supylabel(value)
    figure.suptitle(title)
    return figure


def _check(past, truth, forecasts, names):
    shapes = {"past": past.shape, "truth": truth.shape}
    if past.ndim != 2 or truth.ndim != 2 or {past.shape[1], truth.shape[1]} != {len(names)}:
        raise ValueError(f"past and truth must have a column for each of {names}, got {shapes}.")
    shapes = {name: forecast.shape for name, forecast in forecasts.items()}
    if set(shapes.values()) - {truth.shape} or len(shapes) > len(COLOURS):
        raise ValueError(
            f"forecasts must be at most {len(COLOURS)} arrays of shape {truth.shape}, got {shapes}."
        )


def plot_series_attention(series, weights, labels, title=None):
    """Draws series, one per panel; the more weight a step has, the darker is its background.

    Args:
        series: N arrays (S, F), of different length.
        weights: N sequences of S numbers, at least 0, such as the attention of a class token. Each
            series has its own scale: its largest weight is the darkest.
        labels: N strings, the titles of the panels.
        title: str or `None`.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: there is no series, or numbers of series, weights and labels differ.

    Example:

    >>> figure = plot_series_attention([np.zeros((3, 2))], [[0.1, 0.7, 0.2]], ["line"])
    >>> figure.axes[0].get_title()
    'line'
    """
    from matplotlib.figure import Figure

    lengths = [len(one) for one in series]
    if not lengths or lengths != [len(one) for one in weights] or len(labels) != len(lengths):
        raise ValueError(
            f"There must be a weight for each step and a label for each series, but the series "
            f"have the lengths {lengths}, the weights {[len(one) for one in weights]}, and there "
            f"are {len(labels)} labels."
        )
    columns = min(len(lengths), 2 if len(lengths) <= 4 else 3)
    rows = -(-len(lengths) // columns)
    figure = Figure(figsize=(3.4 * columns, 0.5 + 1.9 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels[len(lengths) :]:
        panel.axis("off")
    for panel, lines, shares, label in zip(panels, series, weights, labels, strict=False):
        panel.plot(lines, linewidth=1)
        low, high = panel.get_ylim()
        extent = (-0.5, len(lines) - 0.5, low, high)
        image = np.asarray(shares)[None] / max(np.max(shares), 1e-9)
        panel.imshow(image, cmap="Greys", vmin=0, vmax=2, extent=extent, aspect="auto", zorder=0)
        panel.set_title(label, fontsize=9)
        panel.tick_params(labelsize=7)
    figure.supxlabel("step", fontsize=9)
    figure.suptitle(title)
    return figure


def plot_anomalies(series, labels, scores):
    """Draws a series, and below it the scores of detectors; anomalies are shaded.

    Args:
        series: (S, F).
        labels: S booleans, the steps of anomalies.
        scores: dict from a detector's name to S numbers; at most four. Each has its own scale.

    Returns:
        `matplotlib.figure.Figure`, with one panel more than detectors.

    Raises:
        ValueError: there are more than four detectors, or lengths differ.

    Example:

    >>> figure = plot_anomalies(np.zeros((3, 2)), [False, True, True], {"z-score": [0, 2, 1]})
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['series', 'z-score']
    """
    from matplotlib.figure import Figure

    lengths = [len(series), len(labels), *map(len, scores.values())]
    if len({*lengths}) > 1 or len(scores) > len(COLOURS):
        raise ValueError(
            f"Series, labels and at most {len(COLOURS)} scores must be equally long, got {lengths}."
        )
    figure = Figure(figsize=(8, 1.2 + 1.3 * len(scores)), layout="constrained")
    panels = figure.subplots(1 + len(scores), 1, sharex=True, squeeze=False)[:, 0]
    panels[0].plot(series, linewidth=0.5)
    panels[0].set_ylabel("series")
    for panel, colour, (name, values) in zip(panels[1:], COLOURS, scores.items(), strict=False):
        panel.plot(values, color=colour, linewidth=0.8)
        panel.set_ylabel(name, fontsize=8)
        panel.set_yticks([])
    edges = np.flatnonzero(np.diff([False, *labels, False])).reshape(-1, 2)
    for panel in panels:
        panel.margins(x=0)
        for first, end in edges:
            panel.axvspan(first - 0.5, end - 0.5, color="0.8", zorder=0)
    panels[-1].set_xlabel("step")
    return figure

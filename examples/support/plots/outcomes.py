"""The outcomes of the entities of each type, as bars."""

from support.plots.panels import COLOURS

OUTCOMES = ("right", "other type", "other words", "missed")


def plot_outcomes(outcomes, most=12, title=None):
    """Draws a bar for each type of entity: the shares of right ones, and of each kind of error.

    Args:
        outcomes: dict from a type to a dict from "right", "other type", "other words" or "missed"
            to a count, as `entity_outcomes` returns it.
        most: int, number of types drawn, the most frequent ones. Defaults to 12.
        title: str or `None`.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: there is no type, or an outcome is unknown.

    Example:

    >>> figure = plot_outcomes({"PER": {"right": 3, "missed": 1}})
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['PER (4)']
    """
    from matplotlib.figure import Figure

    unknown = {name for counts in outcomes.values() for name in counts} - {*OUTCOMES}
    if not outcomes or unknown:
        raise ValueError(
            f"outcomes must have a type, and only the outcomes {OUTCOMES}, but there are "
            f"{len(outcomes)} types and {sorted(unknown)}."
        )
    totals = {kind: sum(counts.values()) for kind, counts in outcomes.items()}
    kinds = sorted(totals, key=lambda kind: -totals[kind])[:most]
    figure = Figure(figsize=(7, 1.3 + 0.28 * len(kinds)), layout="constrained")
    panel = figure.subplots()
    labels = [f"{kind} ({totals[kind]})" for kind in kinds]
    left = [0.0] * len(kinds)
    # Green, orange, sky blue, vermilion: neighbours differ for all kinds of colour vision.
    for outcome, colour in zip(OUTCOMES, (COLOURS[i] for i in (2, 1, 5, 3)), strict=True):
        shares = [100 * outcomes[kind].get(outcome, 0) / totals[kind] for kind in kinds]
        panel.barh(labels, shares, left=left, color=colour, label=outcome)
        left = [a + b for a, b in zip(left, shares, strict=True)]
    panel.invert_yaxis()  # the most frequent type is on top
    panel.set(xlim=(0, 100), xlabel="percent of the true entities of a type (number)")
    figure.legend(loc="outside upper center", ncols=len(OUTCOMES), fontsize=9)
    figure.suptitle(title)
    return figure

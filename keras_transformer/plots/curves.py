"""Learning curves."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # matplotlib is optional
    from matplotlib.figure import Figure


def plot_learning_curve(
    history: Mapping[str, Sequence[float | None]], title: str | None = None
) -> "Figure":
    """Draws each logged quantity by epoch, training and validation in one panel.

    Args:
        history: dict from name to a list with one number per epoch, such as `History.history` of
            `model.fit`. `"val_loss"` is drawn beside `"loss"`. Lists may differ in length, and
            numbers that are `None` or not finite leave a gap.
        title: str or `None`.

    Returns:
        `matplotlib.figure.Figure`, one panel per quantity.

    Raises:
        ValueError: `history` has no numbers.

    Example:

    >>> len(plot_learning_curve({"loss": [5.0, 4.0], "val_loss": [4.5, 4.2], "bleu": [1, 9]}).axes)
    2
    """
    from matplotlib.figure import Figure

    curves = {name: _finite(numbers) for name, numbers in history.items() if len(numbers)}
    quantities = list(dict.fromkeys(name.removeprefix("val_") for name in curves))
    if not quantities:
        raise ValueError(
            f"history must hold a list of numbers for at least one name, got {history!r}. Did "
            "`fit` finish an epoch?"
        )
    figure = Figure(figsize=(4.5 * len(quantities), 3.5), layout="constrained")
    panels = figure.subplots(1, len(quantities), squeeze=False)[0]
    for panel, quantity in zip(panels, quantities, strict=True):
        for name, label in ((quantity, "training"), (f"val_{quantity}", "validation")):
            if name in curves:
                epochs = range(1, len(curves[name]) + 1)
                # A line through one point would be invisible.
                panel.plot(epochs, curves[name], "." if len(epochs) == 1 else "-", label=label)
        if quantity == "perplexity":
            panel.set_yscale("log")
        panel.set_xlabel("epoch")
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.set_title(quantity)
        panel.legend()
    figure.suptitle(title)
    return figure


def _finite(numbers: Sequence[float | None]) -> list[float]:
    """Returns floats, with NaN for values that matplotlib cannot draw."""
    numbers = [math.nan if number is None else float(number) for number in numbers]
    return [number if math.isfinite(number) else math.nan for number in numbers]

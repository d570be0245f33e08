"""The linear forecast of time series, a baseline for every other one.

Shapes: N windows, S steps of the past, T steps to forecast, F series.
"""

import numpy as np


class LinearForecast:
    """Forecasts each step as a weighted sum of past steps, with one set of weights for all series.

    The weights minimise the squared error, in closed form. As in the models of Zeng et al. (arXiv
    2205.13504), which beat many Transformers, the level of each window, here its mean, is
    subtracted, and added to the forecast again.

    Args:
        past: (N, S, F), training windows.
        future: (N, T, F), the steps after each.
        ridge: float, keeps weights small, in units of squared values summed over all windows.
            Defaults to 1000, little for thousands of windows.

    Call arguments:
        past: (M, S, F).

    Call returns:
        (M, T, F) float32.

    Raises:
        ValueError: `past` or `future` does not have three axes, or they differ in N or F.

    Example:

    >>> steps = np.arange(40.0)[:, None] % 4
    >>> past, future = np.stack([steps[i : i + 8] for i in range(20)]), steps[8:28, None]
    >>> LinearForecast(past, future, ridge=1e-6)(past[:1]).round(2)
    array([[[0.]]], dtype=float32)
    """

    def __init__(self, past, future, ridge=1000.0):
        past, future = np.asarray(past), np.asarray(future)
        shapes = past.shape[::2], future.shape[::2]
        if past.ndim != 3 or future.ndim != 3 or shapes[0] != shapes[1]:
            raise ValueError(
                "past and future must be (N, S, F) and (N, T, F), but their shapes are "
                f"{past.shape} and {future.shape}."
            )
        steps = past.shape[1]
        squares, products = ridge * np.eye(steps), np.zeros((steps, future.shape[1]))
        for number in range(past.shape[2]):  # one series at a time, to save memory
            level = past[..., number].mean(axis=1, keepdims=True)
            before, after = past[..., number] - level, future[..., number] - level
            squares += before.T @ before
            products += before.T @ after
        self.weights = np.linalg.solve(squares, products).astype("float32")  # (S, T)

    def __call__(self, past):
        past = np.asarray(past, "float32").transpose(0, 2, 1)  # (M, F, S)
        level = past.mean(axis=2, keepdims=True)
        return ((past - level) @ self.weights + level).transpose(0, 2, 1)

"""Spectrograms, and a model's attention to the sound.

Shapes: S frames, F bands of frequencies, T tokens, S' vectors of the encoder.
"""

import numpy as np


def plot_spectrogram(frames, seconds, hertz, weights=None, tokens=None, title=None):
    """Draws a spectrogram, and below it the attention weights of each token, if given.

    The weights' colours range from 0 to the largest weight.

    Args:
        frames: (S, F), logarithms of the power of the bands; low frequencies first.
        seconds: float, the duration of the sound.
        hertz: float, the highest frequency.
        weights: (T, S'), cross-attention weights, or `None`. The S' vectors are assumed to divide
            the sound evenly.
        tokens: T strings, with `weights`.
        title: str or `None`.

    Returns:
        `matplotlib.figure.Figure`, with one panel, or two that share the time axis.

    Raises:
        ValueError: shapes do not fit.

    Example:

    >>> frames, weights = np.zeros((100, 24)), np.full((3, 25), 1 / 25)
    >>> len(plot_spectrogram(frames, 1.0, 4000, weights, ["one", "two", "</s>"]).axes)
    2
    """
    from matplotlib.figure import Figure

    frames = np.asarray(frames)
    weights = None if weights is None else np.asarray(weights)
    count = 0 if tokens is None else len(tokens)
    if frames.ndim != 2 or (weights is not None and (weights.ndim, len(weights)) != (2, count)):
        raise ValueError(
            f"frames must be (S, F), and weights (T, S') with T tokens, but frames are "
            f"{frames.shape}, weights {None if weights is None else weights.shape}, and there are "
            f"{count} tokens."
        )
    lower = 0.6 + 0.22 * count if count else 0
    figure = Figure(figsize=(8, 2.8 + lower), layout="constrained")
    if weights is None:
        panels = [figure.subplots()]
    else:
        panels = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, lower))
        panels[1].imshow(
            weights,
            vmin=0,
            vmax=weights.max(),
            cmap="Blues",
            aspect="auto",
            interpolation="nearest",
            extent=(0, seconds, count - 0.5, -0.5),
        )
        panels[1].set_yticks(range(count), [token.replace("$", r"\$") for token in tokens])
        panels[1].set_ylabel("token written")
    panels[0].imshow(
        frames.T, origin="lower", aspect="auto", cmap="magma", extent=(0, seconds, 0, hertz / 1000)
    )
    panels[0].set_ylabel("frequency in kHz")
    panels[-1].set_xlabel("time in s")
    figure.suptitle(title)
    return figure


def plot_sounds(sounds, seconds, hertz):
    """Draws the spectrograms of sounds above each other, on one scale of colours.

    Args:
        sounds: dict from a title to the frames (S, F) of a sound, as in `plot_spectrogram`.
        seconds: float, the duration of each sound.
        hertz: float, the highest frequency.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: there is no sound.

    Example:

    >>> frames = np.zeros((100, 24))
    >>> [axes.get_title() for axes in plot_sounds({"noisy": frames}, 1.0, 4000).axes]
    ['noisy']
    """
    from matplotlib.figure import Figure

    if not sounds:
        raise ValueError("sounds is empty. Pass at least one sound.")
    figure = Figure(figsize=(8, 0.4 + 1.8 * len(sounds)), layout="constrained")
    panels = figure.subplots(len(sounds), sharex=True, squeeze=False)[:, 0]
    every = np.concatenate([np.ravel(frames) for frames in sounds.values()])
    scale = {"vmin": every.min(), "vmax": every.max()}
    for panel, (title, frames) in zip(panels, sounds.items(), strict=True):
        extent = (0, seconds, 0, hertz / 1000)
        options = dict(origin="lower", aspect="auto", cmap="magma", extent=extent)
        panel.imshow(np.asarray(frames).T, **scale, **options)
        panel.set(title=title, ylabel="kHz")
    panels[-1].set_xlabel("time in s")
    return figure

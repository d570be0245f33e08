"""Piano rolls: the notes of several voices over time."""

import numpy as np
from support.plots.panels import COLOURS
from support.sets.chorales import SILENCE, SIXTEENTHS, VOICES, notes


def plot_piano_rolls(chorales, titles):
    """Draws chorales one below the other: a bar for each note, a colour for each voice.

    Args:
        chorales: list of int arrays (S, 4), MIDI pitches, -1 for silence.
        titles: list of str, one for each chorale.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: there is no chorale, or there are more or fewer titles than chorales.

    Example:

    >>> figure = plot_piano_rolls([np.array([[72, 67, 64, 48]] * 8)], ["C major"])
    >>> len(figure.axes[0].patches)
    4
    """
    from matplotlib.figure import Figure

    if not len(chorales) == len(titles) > 0:
        raise ValueError(
            f"Pass at least one chorale, and a title for each. There are "
            f"{len(chorales)} chorales and {len(titles)} titles."
        )
    figure = Figure(figsize=(10, 0.6 + 2.4 * len(chorales)), layout="constrained")
    panels = figure.subplots(len(chorales), 1, squeeze=False, sharex=True)[:, 0]
    for panel, chorale, title in zip(panels, chorales, titles, strict=True):
        lines = list(zip(VOICES, np.transpose(chorale), COLOURS, strict=False))
        for voice, line, colour in reversed(lines):  # so that the soprano is on top
            sung = notes(line)
            panel.bar(
                [start / SIXTEENTHS for _, start, _ in sung],
                [0.8] * len(sung),
                [(end - start) / SIXTEENTHS for _, start, end in sung],
                [pitch - 0.4 for pitch, *_ in sung],
                align="edge",
                color=colour,
                edgecolor="white",
                label=voice,
            )
        octaves = range(36, 85, 12)
        panel.set_yticks(octaves, [f"C{pitch // 12 - 1}" for pitch in octaves])
        sounding = chorale[chorale != SILENCE]
        limits = (sounding.min() - 2, sounding.max() + 2) if sounding.size else (36, 84)
        panel.set(title=title, ylabel="pitch", ylim=limits)
        panel.grid(alpha=0.3)
    panels[-1].set_xlabel("quarters")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles[::-1], labels[::-1], loc="outside upper center", ncols=len(VOICES), fontsize=9
    )
    return figure

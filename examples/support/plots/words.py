"""Sentences whose words are shaded by their weights.

Shapes: N sentences, S tokens of one of them.
"""

import numpy as np

WIDTH = 0.085  # of a character, in inches
LINE = 0.34  # height of a sentence, in inches
DARKEST = 0.75  # of the colour map: black letters stay legible on it


def plot_words(sentences, weights, labels, title=None):
    """Draws sentences, one per line; the more weight a token has, the darker is its background.

    The weights are the attention of one query, such as a class token, to the tokens of a text.

    Args:
        sentences: N lists of S tokens, str. They are joined without spaces, so a token that starts
            a word must begin with one.
        weights: N sequences of S numbers, at least 0. Each sentence has its own scale: its largest
            weight is the darkest.
        labels: N strings, written before each sentence, such as a predicted class.
        title: str or `None`.

    Returns:
        `matplotlib.figure.Figure`.

    Raises:
        ValueError: there is no sentence, or the numbers of sentences, weights and labels differ.

    Example:

    >>> figure = plot_words([["not", " bad"]], [[0.8, 0.2]], ["positive"])
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['positive', 'not', ' bad']
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    _check(sentences, weights, labels)
    colours = colormaps["Blues"]
    margin = max(map(len, labels)) + 2  # in characters, as all widths
    columns = margin + max(sum(map(len, tokens)) for tokens in sentences) + 1
    size = columns * WIDTH, LINE * len(sentences) + 0.9
    figure = Figure(figsize=size, layout="constrained")
    panel = figure.subplots()
    panel.set(xlim=(0, columns), ylim=(len(sentences), 0))
    panel.axis("off")
    style = {"family": "monospace", "fontsize": WIDTH * 72 / 0.602, "va": "center"}
    style["parse_math"] = False  # "$" is a letter
    for row, (tokens, shares) in enumerate(zip(sentences, weights, strict=True)):
        panel.text(0, row + 0.5, labels[row], color="0.4", **style)
        largest = max(*shares, 1e-9)
        left = margin
        for token, share in zip(tokens, shares, strict=True):
            box = Rectangle((left, row + 0.1), len(token), 0.8, linewidth=0)
            box.set_facecolor(colours(DARKEST * share / largest))
            panel.add_patch(box)
            panel.text(left, row + 0.5, token, **style)
            left += len(token)
    scale = ScalarMappable(Normalize(0, 1 / DARKEST), colours)
    bar = figure.colorbar(scale, ax=panel, orientation="horizontal", shrink=0.4, aspect=40)
    bar.ax.set_xlim(0, 1)
    bar.set_label("weight, relative to the largest of its sentence")
    figure.suptitle(title)
    return figure


def _check(sentences, weights, labels):
    counts = len(sentences), len(weights), len(labels)
    pairs = zip(sentences, weights, strict=False)
    if not sentences or len(set(counts)) > 1 or any(len(a) != np.size(b) for a, b in pairs):
        raise ValueError(
            "Pass at least one sentence, a label for each, and a weight for each token. There are "
            f"{counts[0]} sentences, {counts[1]} rows of weights and {counts[2]} labels."
        )

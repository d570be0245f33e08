"""Trees of sentences."""

from support.sets.trees import is_word

WIDTH = 0.75  # of a word, in inches
HEIGHT = 0.42  # of a level, in inches


def plot_trees(trees, titles, title=None):
    """Draws trees, one under the other: words from left to right, phrases above them.

    Args:
        trees: list of `Tree`.
        titles: list of str, one above each tree.
        title: str or `None`.

    Returns:
        `matplotlib.figure.Figure`, one panel per tree.

    Raises:
        ValueError: there is no tree, or the number of titles differs.

    Example:

    >>> tree = read_trees("(S (NP (NNP Anna)) (VP (VBZ sleeps)))")[0]
    >>> [text.get_text() for text in plot_trees([tree], ["gold"]).axes[0].texts]
    ['Anna', 'NP', 'sleeps', 'VP', 'S']
    """
    from matplotlib.figure import Figure

    if not trees or len(trees) != len(titles):
        raise ValueError(
            f"Pass one or more trees, and a title for each. There are {len(titles)} titles for "
            f"{len(trees)} trees."
        )
    heights = [_height(tree) for tree in trees]
    words = max(_words(tree) for tree in trees)
    size = WIDTH * words + 0.5, sum(HEIGHT * (height + 1) + 0.4 for height in heights)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(trees), 1, squeeze=False, height_ratios=[h + 1 for h in heights])
    for panel, tree, name in zip(panels[:, 0], trees, titles, strict=True):
        panel.axis("off")
        panel.set_title(name, fontsize=9)
        panel.set(xlim=(-0.7, words - 0.3), ylim=(-0.5, _height(tree) + 0.5))
        _draw(panel, tree, 0)
    figure.suptitle(title)
    return figure


def _height(tree):
    return 0 if is_word(tree) else 1 + max(map(_height, tree.children))


def _words(tree):
    return 1 if is_word(tree) else sum(map(_words, tree.children))


def _draw(panel, tree, begin):
    """Draws a tree whose first word is number `begin`; returns the place of its label."""
    box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    style = {"ha": "center", "va": "center", "fontsize": 8, "parse_math": False, "bbox": box}
    if is_word(tree):
        panel.text(begin, 0, tree.children[0], **style)
        return begin, 0
    places = []
    for child in tree.children:
        places.append(_draw(panel, child, begin))
        begin += _words(child)
    place = (places[0][0] + places[-1][0]) / 2, _height(tree)
    for x, y in places:  # sideways first, then down, so lines never cross
        line = [place[0], x, x], [place[1], place[1], y]
        panel.plot(*line, color="0.75", linewidth=1, zorder=0)
    panel.text(*place, tree.label, color="tab:blue", **style)
    return place

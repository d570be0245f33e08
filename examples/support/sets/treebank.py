"""Sets of trees: the sample of the Penn Treebank, and random trees of a small grammar."""

import random
import re
import zipfile
from typing import NamedTuple

from support.sets.trees import Tree, cleaned, read_trees, tagged_words

# The files of the sample by number. Whole articles, so that no article is in two sets.
TRAIN, VALID, TEST = range(1, 151), range(151, 171), range(171, 200)

# Alternatives by label; a repeated one is drawn twice as often. The text after "-" makes words
# agree, and is not part of a tree's label. "of" attaches to the noun before it, every other
# preposition to the verb.
PHRASES = {
    "TOP": ["S-STATEMENT", "S-STATEMENT", "SQ"],
    "S-STATEMENT": ["NP-ONE VP-ONE .", "NP-MANY VP-MANY ."],
    "SQ": ["VBZ-DOES NP-ONE VP-BASE ?", "VBP-DO NP-MANY VP-BASE ?"],
    "NP-ONE": ["DT NN", "DT NN", "DT JJ NN", "NNP", "NP-ONE PP-OF"],
    "NP-MANY": ["DT-MANY NNS", "JJ NNS", "CD NNS", "CD JJ NNS"],
    "NP-ANY": ["DT NN", "DT JJ NN", "DT-MANY NNS", "JJ NNS", "NNP", "NP-ONE PP-OF"],
    "VP-ONE": ["VBZ NP-ANY", "VBZ NP-ANY PP", "VBZ PP", "VBZ ADVP"],
    "VP-MANY": ["VBP NP-ANY", "VBP NP-ANY PP", "VBP PP", "VBP ADVP"],
    "VP-BASE": ["VB NP-ANY", "VB NP-ANY PP", "VB PP"],
    "PP": ["IN NP-ANY"],
    "PP-OF": ["IN-OF NP-ANY"],
    "ADVP": ["RB"],
}
# Some words are noun and verb: only the sentence determines which.
WORDS = {
    "DT": "the a this every",
    "DT-MANY": "the these some",
    "CD": "two three seven",
    "NN": "dog cat child garden river house teacher friend walk play watch visit",
    "NNS": "dogs cats children gardens rivers houses teachers friends walks plays watches visits",
    "VBZ": "sees likes finds walks plays watches visits",
    "VBP": "see like find walk play watch visit",
    "VB": "see like find walk play watch visit",
    "NNP": "Anna Ben Clara David",
    "JJ": "old small red quiet happy",
    "RB": "often slowly here",
    "IN": "in near behind with",
    "IN-OF": "of",
    "VBZ-DOES": "does",
    "VBP-DO": "do",
    ".": ".",
    "?": "?",
}


class TreeSets(NamedTuple):
    """Lists of `Tree` for training, validation and test."""

    train: list[Tree]
    valid: list[Tree]
    test: list[Tree]


def read_treebank(path, limit=None):
    """Reads the sample of the Penn Treebank that NLTK ships, without traces and functions.

    The first 150 articles are for training, the next 20 for validation, the last 29 for the test.

    Args:
        path: zip file with files such as `wsj_0001.mrg`.
        limit: int, number of trees used per set. Defaults to `None`: all.

    Returns:
        `TreeSets`.

    Raises:
        ValueError: it is not a zip file, or has no trees of a set; or as `read_trees`.
        FileNotFoundError: there is no such file.

    Example:

    >>> read_treebank("parsing/wsj-sample.zip").test[0]  # doctest: +SKIP
    """
    try:
        with zipfile.ZipFile(path) as packed:
            found = ((re.search(r"wsj_(\d+)\.mrg$", name), name) for name in packed.namelist())
            names = {int(match[1]): name for match, name in found if match}
            trees = {n: read_trees(packed.read(name).decode()) for n, name in names.items()}
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is not a zip file: {error}") from error
    sides = [
        [clean for n in numbers for tree in trees.get(n, []) if (clean := cleaned(tree))][:limit]
        for numbers in (TRAIN, VALID, TEST)
    ]
    if not all(sides):
        counts = ", ".join(str(len(side)) for side in sides)
        raise ValueError(f"{path} has {counts} trees in wsj_0001-0150, 0151-0170 and 0171-0199.")
    return TreeSets(*sides)


def made_trees(limit=None):
    """Draws trees of sentences of a small grammar, without duplicates.

    Every call draws the same trees: 2,000 for training, 200 each in the other sets.

    Args:
        limit: int, number of trees used per set. Defaults to `None`: all.

    Returns:
        `TreeSets`.

    Example:

    >>> str(made_trees().test[0])
    '...'
    """
    draw, trees = random.Random(0), {}
    while len(trees) < 2400:
        tree = cleaned(_grown("TOP", draw))
        trees[tuple(word for word, _ in tagged_words(tree))] = tree
    trees = list(trees.values())
    return TreeSets(trees[400:][:limit], trees[:200][:limit], trees[200:400][:limit])


def _grown(label, draw, depth=0):
    """Draws a random tree under a label."""
    if label in WORDS:
        return Tree(label.split("-")[0], (draw.choice(WORDS[label].split()),))
    choices = PHRASES[label]
    if depth > 4:  # no more prepositional phrases
        choices = [choice for choice in choices if "PP" not in choice] or choices
    symbols = draw.choice(choices).split()
    return Tree(label, tuple(_grown(symbol, draw, depth + 1) for symbol in symbols))

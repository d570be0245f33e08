"""Trees of sentences: read from a treebank, as lines of brackets, and as words with tags.

A tree of the Penn Treebank, and its line of brackets:

    (S (NP (DT the) (NN dog)) (VP (VBZ sleeps)) (. .))
    (S (NP XX XX )NP (VP XX )VP XX )S

A model writes the second form (Vinyals et al., arXiv 1412.7449; section 6.3 of the paper). The
words are known, and their tags all become XX.
"""

import itertools
import re
from typing import NamedTuple

TOP = "TOP"  # around each tree, without meaning
TRACE = "-NONE-"  # the tag of a moved element, which is not in the text
WORD = "XX"


class Tree(NamedTuple):
    """A node with its label and its children.

    Attributes:
        label: str: a phrase such as "NP", or the tag of a word.
        children: tuple of `Tree`, or of one str, the word.
    """

    label: str
    children: tuple

    def __str__(self):
        return f"({self.label} {' '.join(map(str, self.children))})"


def is_word(tree):
    """Returns whether a node is a tag with its word."""
    return isinstance(tree.children[0], str)


def tagged_words(tree):
    """Returns the words of a tree in order, a list of pairs (word, tag).

    Example:

    >>> tagged_words(read_trees("(S (NP (NNP Anna)) (VP (VBZ sleeps)))")[0])
    [('Anna', 'NNP'), ('sleeps', 'VBZ')]
    """
    if is_word(tree):
        return [(tree.children[0], tree.label)]
    return [pair for child in tree.children for pair in tagged_words(child)]


def phrases(tree, least=1):
    """Returns all phrases inside a tree, except itself, with at least `least` words, as trees.

    Each is a small extra tree for training, of words that belong together.

    Example:

    >>> (tree,) = read_trees("(S (NP (DT the) (NN dog)) (VP (VBZ sleeps)))")
    >>> [str(phrase) for phrase in phrases(tree)]
    ['(NP (DT the) (NN dog))', '(VP (VBZ sleeps))']
    >>> phrases(tree, least=2) == phrases(tree)[:1]
    True
    """
    found = []
    for child in tree.children if not is_word(tree) else ():
        if not is_word(child):
            found += [child, *phrases(child)]
    return [phrase for phrase in found if len(tagged_words(phrase)) >= least]


def read_trees(text):
    """Reads trees in the form of the Penn Treebank, "(LABEL child child ...)", on any lines.

    Args:
        text: str. A bracket without label gets TOP.

    Returns:
        List of `Tree`.

    Raises:
        ValueError: brackets do not match, a bracket is empty, or a word is beside a bracket.

    Example:

    >>> [str(tree) for tree in read_trees("( (S (NP (NNP Anna)) (VP (VBZ sleeps))) )")]
    ['(TOP (S (NP (NNP Anna)) (VP (VBZ sleeps))))']
    """
    trees, open_nodes = [], []  # label and children so far of each open bracket
    tokens = re.findall(r"\(\s*[^\s()]*|\)|[^\s()]+", text)
    for place, token in enumerate(tokens):
        where = " ".join(tokens[max(0, place - 5) : place + 1])
        if token.startswith("("):
            open_nodes.append((token[1:].strip() or TOP, []))
        elif not open_nodes:
            raise ValueError(f"{token!r} is outside all brackets, after: {where}")
        elif token != ")":
            open_nodes[-1][1].append(token)
        else:
            tree = Tree(open_nodes[-1][0], tuple(open_nodes.pop()[1]))
            if not tree.children or (is_word(tree) and len(tree.children) > 1):
                raise ValueError(f"a bracket must hold one word, or brackets: {where}")
            if any(isinstance(child, str) for child in tree.children[1:]):
                raise ValueError(f"a bracket must hold one word, or brackets: {where}")
            (open_nodes[-1][1] if open_nodes else trees).append(tree)
    if open_nodes:
        raise ValueError(f"{len(open_nodes)} brackets are not closed, {open_nodes[0][0]} first.")
    return trees


def cleaned(tree):
    """Removes TOP, traces and functions from a tree, so that NP-SBJ-1 becomes NP.

    Args:
        tree: `Tree`.

    Returns:
        `Tree`, or `None` if it has only traces.

    Example:

    >>> tree = "( (S (NP-SBJ-1 (NNP Anna)) (VP (VBD left) (NP (-NONE- *-1)))) )"
    >>> str(cleaned(read_trees(tree)[0]))
    '(S (NP (NNP Anna)) (VP (VBD left)))'
    """
    if is_word(tree):
        return None if tree.label == TRACE else tree
    children = tuple(child for child in map(cleaned, tree.children) if child)
    if not children:
        return None
    if tree.label == TOP and len(children) == 1:
        return children[0]
    return Tree(re.split(r"[-=|]", tree.label)[0], children)


def to_brackets(tree, tags=False, numbers=False):
    """Returns a tree as a line of brackets, its words as XX.

    Each phrase also ends with its label, so that a model need not count brackets.

    Args:
        tree: `Tree`.
        tags: bool, whether to write tags instead of XX. There is more to learn, but the model then
            also learns which word comes next.
        numbers: bool, whether to write each word's number in the sentence, from 1, before it, so
            that a model need not count words.

    Example:

    >>> (tree,) = read_trees("(S (NP (NNP Anna)) (VP (VBZ sleeps)))")
    >>> to_brackets(tree)
    '(S (NP XX )NP (VP XX )VP )S'
    >>> to_brackets(tree, tags=True, numbers=True)
    '(S (NP 1 NNP )NP (VP 2 VBZ )VP )S'
    """
    counter = itertools.count(1)

    def write(node):
        if is_word(node):
            word = node.label if tags else WORD
            return f"{next(counter)} {word}" if numbers else word
        return f"({node.label} {' '.join(map(write, node.children))} ){node.label}"

    return write(tree)


def from_brackets(line, words=None):
    """Parses a line of brackets into a tree.

    Args:
        line: str, as `to_brackets` writes it. Labels of closing brackets are optional, and numbers
            are ignored.
        words: list of pairs (word, tag), which replace XX or tags. Defaults to `None`: any number
            of XX or tags, which become both words and tags of the tree.

    Returns:
        `Tree`.

    Raises:
        ValueError: the line is not one well-formed tree, or has another number of words.

    Example:

    >>> str(from_brackets("(S (NP XX )NP XX )S", [("Anna", "NNP"), (".", ".")]))
    '(S (NP (NNP Anna)) (. .))'
    """
    tokens = [token for token in line.split() if not token.isdigit()]
    places = [token for token in tokens if token[0] not in "()"]
    if words is not None and len(places) != len(words):
        raise ValueError(f"{len(places)} words are in brackets, but there are {len(words)}: {line}")
    pairs = iter(zip(places, places, strict=True) if words is None else words)
    opened, spelled = [], []
    for token in tokens:
        if token[0] == "(":
            opened.append(token[1:])
        elif token[0] == ")":
            label = opened.pop() if opened else None
            if token[1:] not in ("", label):
                raise ValueError(f"{token} closes ({label}: {line}")
            token = ")"
        else:
            token = "({1} {0})".format(*next(pairs))
        spelled.append(token)
    trees = read_trees(" ".join(spelled))
    if len(trees) != 1:
        raise ValueError(f"{len(trees)} trees are in this line: {line}")
    return trees[0]

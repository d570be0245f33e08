"""Labelled texts: public sets read from files, and synthetic opinions that need no files.

Each function returns `LabelledTexts`. If a set has no validation part, every call draws the same
one from its training part.
"""

import gzip
import itertools
import json
import random
from pathlib import Path
from typing import NamedTuple

from keras_transformer.text.corpora import read_lines

# The names of the six kinds, in the order of their numbers in the files.
TREC_LABELS = ("description", "entity", "abbreviation", "person", "place", "number")
SENTIMENTS = ("negative", "positive")


class LabelledTexts(NamedTuple):
    """Three sets, each a list of texts and a list of their labels.

    Attributes:
        train: the training texts.
        valid: the texts that select epochs and settings.
        test: the test texts.
        labels: tuple of str, all labels.
    """

    train: tuple[list[str], list[str]]
    valid: tuple[list[str], list[str]]
    test: tuple[list[str], list[str]]
    labels: tuple[str, ...]


def read_trec(folder, limit=None):
    """Reads TREC's questions and the six kinds of their answers (Li and Roth, 2002).

    Args:
        folder: folder of `TREC.train.all` and `TREC.test.all`: one class number and question per
            line. A tenth of the training questions becomes the validation set.
        limit: int, number of texts used per set. Defaults to `None`: all.

    Returns:
        `LabelledTexts`.

    Raises:
        ValueError: a line has another form.
        FileNotFoundError: a file is missing.

    Example:

    >>> texts, labels = read_trec("sentiment").test  # doctest: +SKIP
    >>> texts[0], labels[0]  # doctest: +SKIP
    ('How far is it from Denver to Aspen ?', 'number')
    """

    def read(name):
        # The files are in Latin-1, one byte per character.
        lines = Path(folder, name).read_text("latin-1").removesuffix("\n").split("\n")
        pairs = [line.partition(" ") for line in lines]
        return _labelled(((text, label) for label, _, text in pairs), TREC_LABELS, name)

    train, valid = _parted(read("TREC.train.all"), 0.1)
    return _sets(train, valid, read("TREC.test.all"), TREC_LABELS, limit)


def read_sst2(folder, limit=None):
    """Reads SST-2: sentences of film reviews, negative or positive (Socher et al., 2013).

    Args:
        folder: folder of `train.tsv`, `dev.tsv` and `test.tsv`: a sentence, a tab and 0 or 1 per
            line.
        limit: int, number of texts used per set. Defaults to `None`: all.

    Returns, raises: as `read_trec`.
    """

    def read(name):
        pairs = [line.rpartition("\t") for line in read_lines(Path(folder, name))]
        return _labelled(((text, label) for text, _, label in pairs), SENTIMENTS, name)

    return _sets(read("train.tsv"), read("dev.tsv"), read("test.tsv"), SENTIMENTS, limit)


def read_imdb(folder, limit=None):
    """Reads IMDB's film reviews, negative or positive (Maas et al., 2011).

    Args:
        folder: folder of `train.jsonl.gz` and `test.jsonl.gz`: one object with "text" and "label",
            0 or 1, per line. A tenth of the training reviews becomes the validation set.
        limit: int, number of texts used per set, in random order, because the files are sorted by
            label. Defaults to `None`: all.

    Returns, raises: as `read_trec`.
    """

    def read(name):
        with gzip.open(Path(folder, name), "rt", encoding="utf-8") as lines:
            rows = map(json.loads, lines)
            pairs = [(row["text"].replace("<br />", " "), str(row["label"])) for row in rows]
        random.Random(0).shuffle(pairs)
        return _labelled(pairs, SENTIMENTS, name)

    train, valid = _parted(read("train.jsonl.gz"), 0.1)
    return _sets(train, valid, read("test.jsonl.gz"), SENTIMENTS, limit)


def made_opinions(limit=None):
    """Makes short opinions about films from a few words, negative or positive.

    A word for "good" after a word for "not" is negative, and vice versa, so counts of words do not
    determine the label. No opinion is in two sets.

    Args:
        limit: int, number of texts used per set. Defaults to `None`: all, 2,000 for training and
            400 each in the other sets.

    Returns:
        `LabelledTexts`.

    Example:

    >>> made_opinions().labels
    ('negative', 'positive')
    """
    things = "film cast story plot ending music acting script camera dialogue".split()
    verbs = "is", "was", "seems", "felt"
    turns = {"": 0, "really": 0, "very": 0, "not": 1, "never": 1, "hardly": 1}
    kinds = {
        "good": 1,
        "great": 1,
        "clever": 1,
        "funny": 1,
        "moving": 1,
        "honest": 1,
        "rich": 1,
        "bad": 0,
        "dull": 0,
        "weak": 0,
        "silly": 0,
        "boring": 0,
        "empty": 0,
        "poor": 0,
    }
    pairs = [
        (" ".join(f"the {thing} {verb} {turn} {kind}".split()), SENTIMENTS[kinds[kind] ^ turned])
        for thing, verb, (turn, turned), kind in itertools.product(
            things, verbs, turns.items(), kinds
        )
    ]
    random.Random(0).shuffle(pairs)
    return _sets(pairs[800:2800], pairs[:400], pairs[400:800], SENTIMENTS, limit)


def _labelled(pairs, labels, name):
    """Returns pairs of text and label, from pairs of text and class number."""
    known = {str(number): label for number, label in enumerate(labels)}
    found = []
    for line, (text, number) in enumerate(pairs, 1):
        if number not in known or not text:
            raise ValueError(
                f"{name}, line {line}: expected a text and a class number from 0 to "
                f"{len(labels) - 1}, found {number!r} and {text[:40]!r}."
            )
        found.append((text, known[number]))
    return found


def _parted(pairs, share):
    """Shuffles the pairs; returns all but a share of them, and that share."""
    pairs = random.Random(0).sample(pairs, len(pairs))
    count = round(share * len(pairs))
    return pairs[count:], pairs[:count]


def _sets(train, valid, test, labels, limit):
    sides = (tuple(map(list, zip(*pairs[:limit], strict=True))) for pairs in (train, valid, test))
    return LabelledTexts(*sides, labels)

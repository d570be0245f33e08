"""Descriptions of Debian's packages: texts of a paragraph with a line that says the same."""

import bz2
import gzip
import hashlib
import lzma
import re
from pathlib import Path

from support.sets.text_sets import TextSets

NAME = "Translation-en"
OPENERS = {"": open, ".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}
SHORTEST = 8  # words: less than that is no text to summarise


def read_synopses(folder, limit=None, longest=60):
    """Reads descriptions of Debian's packages: the first paragraph, and the synopsis of a line.

    Every mirror of Debian has the file, such as `dists/bookworm/main/i18n/Translation-en.xz`. Many
    packages share a first paragraph, as a library and its documentation do: the first one is taken.
    A share of 1/40 by a hash of the paragraph is the test set, another one the validation set. In
    neither is a paragraph or a synopsis that is in the training set.

    Args:
        folder: str or path-like, where "Translation-en" is; ".xz", ".gz" or ".bz2" may follow.
        limit: int, number of pairs used of each set, in an order by chance. Defaults to
            `None`: all.
        longest: int, most words of a paragraph; the rest of it is left out. Defaults to 60.

    Returns:
        `TextSets` of paragraphs and synopses, with one test set, "test".

    Raises:
        ValueError: there is no such file, it is broken, or holds no descriptions.
    """
    pairs = {}
    for synopsis, paragraph in _descriptions(_read(Path(folder))):
        words = paragraph.split()
        if len(words) >= SHORTEST and synopsis:
            pairs.setdefault(" ".join(words[:longest]), synopsis)
    if not pairs:
        raise ValueError(f"{folder}: {NAME} holds no descriptions of packages.")
    sets = [], [], []
    for key, pair in sorted(
        (hashlib.sha256(text.encode()).hexdigest(), (text, synopsis))
        for text, synopsis in pairs.items()
    ):
        share = int(key[-8:], 16) % 40
        sets[share if share < 2 else 2].append(pair)
    test, valid, train = sets
    seen = {_plain(synopsis) for _, synopsis in train}
    valid, test = ([pair for pair in some if _plain(pair[1]) not in seen] for some in (valid, test))
    sides = [
        [list(side) for side in zip(*some[:limit], strict=True)] or [[], []]
        for some in (train, valid, test)
    ]
    return TextSets(sides[0], sides[1], {"test": sides[2]})


def _read(folder):
    for ending, opener in OPENERS.items():
        path = folder / f"{NAME}{ending}"
        if path.exists():
            try:
                with opener(path, "rt", encoding="utf-8") as file:
                    return file.read()
            except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
                raise ValueError(f"{path}: broken file ({error}). Fetch it again.") from error
    raise ValueError(
        f"{folder} has no {NAME}, nor one with {', '.join(filter(None, OPENERS))}. A mirror of "
        "Debian has it, such as deb.debian.org/debian/dists/bookworm/main/i18n/."
    )


def _descriptions(text):
    """Yields (synopsis, first paragraph) of each package."""
    for found in re.finditer(r"^Description-en: *(.*)\n((?: .*\n?)*)", text, re.MULTILINE):
        synopsis, lines = found.groups()
        first = re.split(r"^ \.\s*$", lines, maxsplit=1, flags=re.MULTILINE)[0]
        yield synopsis.strip(), " ".join(first.split())


def _plain(synopsis):
    """A synopsis without what tells the packages of one source from each other."""
    return re.split(r" [-(]", synopsis.lower())[0].strip(" .")

"""Descriptions of Debian's packages: paragraphs with one-line summaries."""

import bz2
import gzip
import hashlib
import lzma
import re
from pathlib import Path

from support.sets.text_sets import TextSets

NAME = "Translation-en"
OPENERS = {"": open, ".xz": lzma.open, ".gz": gzip.open, ".bz2": bz2.open}
SHORTEST = 8  # words; shorter paragraphs are left out


def read_synopses(folder, limit=None, longest=60):
    """Reads descriptions of Debian's packages: the first paragraph and the one-line synopsis.

    Every mirror of Debian has the file, such as `dists/bookworm/main/i18n/Translation-en.xz`. Of
    packages with the same first paragraph, such as a library and its documentation, the first is
    taken. A hash of the paragraph assigns 1/40 to the test set and 1/40 to the validation set.
    Neither contains a paragraph or a synopsis of the training set.

    Args:
        folder: str or path-like, folder of "Translation-en"; ".xz", ".gz" or ".bz2" may follow.
        limit: int, number of pairs used per set, in the order of the hashes. Defaults to `None`:
            all.
        longest: int, maximum number of words of a paragraph; the rest is cut. Defaults to 60.

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
        f"{folder} has no {NAME}, plain or with {', '.join(filter(None, OPENERS))}. Get it from a "
        "mirror of Debian, such as deb.debian.org/debian/dists/bookworm/main/i18n/."
    )


def _descriptions(text):
    """Yields (synopsis, first paragraph) of each package."""
    for found in re.finditer(r"^Description-en: *(.*)\n((?: .*\n?)*)", text, re.MULTILINE):
        synopsis, lines = found.groups()
        first = re.split(r"^ \.\s*$", lines, maxsplit=1, flags=re.MULTILINE)[0]
        yield synopsis.strip(), " ".join(first.split())


def _plain(synopsis):
    """Returns a synopsis without the part that differs between packages of one source."""
    return re.split(r" [-(]", synopsis.lower())[0].strip(" .")

"""Glossaries: target phrases that translations of given source phrases must contain."""

import pathlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Self

from keras_transformer.special_ids import UNKNOWN_ID
from keras_transformer.text.corpora import read_lines
from keras_transformer.text.words import NO_SPACES, has_no_spaces
from keras_transformer.types import AnyTokenizer, StrPath

# Around the target phrase in an annotated source.
MARKS = ("\u27e6", "\u27e7")
_PART = re.compile(rf"[{NO_SPACES}]|[^\W{NO_SPACES}]+|[^\w\s]")
_JOINERS = "\u200c\u200d"  # inside words of some scripts


class Occurrence(NamedTuple):
    """A target phrase for a part of a line.

    Attributes:
        start, end: int, the first character of the source phrase, and the one after its last.
        target: str, the target phrase.
    """

    start: int
    end: int
    target: str


class Glossary:
    """Target phrases for source phrases.

    An entry applies where the words of its source phrase follow each other in a line. In scripts
    without spaces, such as Chinese and Thai, each character counts as a word. Upper and lower case
    and white space do not matter. Where several entries apply, the longest one counts.

    Args:
        entries: mapping from source phrases to target phrases, or pairs of both. The first of two
            entries with the same source phrase counts.

    Raises:
        ValueError: a phrase is empty.

    Example:

    >>> glossary = Glossary({"hat": "Hut", "hard hat": "Schutzhelm"})
    >>> glossary.terms("A man with a Hard  Hat and a hat.")
    ['Schutzhelm', 'Hut']
    >>> glossary.terms("Whatever.")
    []
    """

    def __init__(self, entries: Mapping[str, str] | Iterable[tuple[str, str]]):
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        self._targets: dict[tuple[str, ...], str] = {}
        for pair in pairs:
            match pair:
                case (str(source), str(target)) if _words(source) and target.strip():
                    self._targets.setdefault(_words(source), target.strip())
                case _:
                    raise ValueError(f"An entry needs a source and a target phrase, got {pair!r}.")
        self._longest = max(map(len, self._targets), default=0)

    @classmethod
    def read(cls, path: StrPath) -> Self:
        """Reads a file of tab-separated values.

        Args:
            path: str or path. A line has a source phrase, a tab and a target phrase; further
                columns and empty lines are skipped. The file must be UTF-8.

        Raises:
            ValueError: a line lacks a phrase or is not UTF-8.

        >>> glossary = Glossary.read("terms.tsv")  # doctest: +SKIP
        """
        return cls(_pairs(pathlib.Path(path)))

    def terms(self, line: str) -> list[str]:
        """Returns the target phrases of the entries that apply to a line, each once."""
        return list(dict.fromkeys(found.target for found in self.occurrences(line)))

    def annotated(self, line: str, translation: str | None = None) -> str:
        """Returns a line with target phrases after their source phrases, between marks.

        A model that is trained with such lines learns to copy the phrases, and to inflect them
        (Dinu et al. 2019). `translation_batches` makes them with its option `glossary`.

        Args:
            line: str, the source.
            translation: str, for training. Entries whose target phrase is not in it do not apply.
                Defaults to `None`: all entries apply.

        >>> Glossary({"hard hat": "Schutzhelm"}).annotated("A man with a hard hat.")
        'A man with a hard hat ⟦Schutzhelm⟧.'
        """
        parts, place = [], 0
        known = None if translation is None else _words(translation)
        for _, end, target in self.occurrences(line):
            if known is None or _is_part(_words(target), known):
                parts += [line[place:end], f" {MARKS[0]}{target}{MARKS[1]}"]
                place = end
        return "".join([*parts, line[place:]])

    def occurrences(self, line: str) -> Iterator[Occurrence]:
        """Yields an `Occurrence` for each place of a line where an entry applies, in order.

        >>> list(Glossary({"hat": "Hut"}).occurrences("A hat."))
        [Occurrence(start=2, end=5, target='Hut')]
        """
        spans = _spans(line)
        words = tuple(_folded(line[slice(*span)]) for span in spans)
        place = 0
        while place < len(words):
            for size in range(min(self._longest, len(words) - place), 0, -1):
                target = self._targets.get(words[place : place + size])
                if target is not None:
                    yield Occurrence(spans[place][0], spans[place + size - 1][1], target)
                    place += size
                    break
            else:
                place += 1


def annotated_sources(
    sources: list[str], targets: list[str], glossary: Glossary | StrPath, tokenizer: AnyTokenizer
) -> list[str]:
    """Returns the sources of pairs with the target phrases of a glossary.

    Raises:
        ValueError: the tokenizer has no pieces for the marks of annotations.
    """
    marks = "".join(MARKS)
    if UNKNOWN_ID in tokenizer.encode(marks):
        raise ValueError(
            f"The tokenizer has no pieces for the marks {marks} of annotations. Train it with "
            "byte_fallback=True, or with lines that have them."
        )
    if not isinstance(glossary, Glossary):
        glossary = Glossary.read(glossary)
    return [glossary.annotated(*pair) for pair in zip(sources, targets, strict=True)]


def _is_part(words: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Returns whether words follow each other among other words."""
    starts = range(len(others) - len(words) + 1)
    return any(others[start : start + len(words)] == words for start in starts)


def _folded(word: str) -> str:
    """Returns a word in composed form, without case."""
    return unicodedata.normalize("NFC", word).casefold()


def _words(text: str) -> tuple[str, ...]:
    """Returns words and punctuation marks, folded for comparison."""
    return tuple(_folded(text[slice(*span)]) for span in _spans(text))


def _spans(text: str) -> list[tuple[int, int]]:
    """Returns the place of each word with its combining marks, and of each punctuation mark."""
    spans: list[tuple[int, int]] = []
    in_word = has_mark = False
    for match in _PART.finditer(text):
        (start, end), first = match.span(), match[0][0]
        after_word = in_word and spans[-1][1] == start
        is_mark = unicodedata.category(first)[0] == "M" or first in _JOINERS
        in_word = is_mark or re.match(r"\w", first) is not None
        continues = is_mark or (has_mark and not has_no_spaces(first))
        if after_word and in_word and continues:
            spans[-1] = spans[-1][0], end
        else:
            spans.append((start, end))
        has_mark = is_mark
    return spans


def _pairs(path: pathlib.Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        source, *rest = line.split("\t")
        if not (source.strip() and rest and rest[0].strip()):
            raise ValueError(
                f"{path}, line {number} must hold a source phrase, a tab and a target phrase, but "
                f"it is {line[:80]!r}."
            )
        yield source, rest[0]

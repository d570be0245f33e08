"""Glossaries of a call: their terms for each line, and the places of terms in a translation.

A search with `Terms` gets the terms of a line as an option (`terms_of_lines`). A search with
alignments and prefixes writes them in place of the words that are aligned to their source phrases
(`place_terms`). It first translates a line freely. The target words that attend most to a source
phrase give the place of its term. The search then runs again with a prefix: the text before these
words, and the term. So the rest of the sentence follows the term. If the rest would continue the
term's word, or repeat a word that the term replaces, the term stands in the free translation
instead. Terms are written from left to right, one search for each. Lines with a term share batches.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from keras_transformer.export.artefact.options import Option
from keras_transformer.export.artefact.results import Details, Row, Translation
from keras_transformer.text.glossary import Glossary, Occurrence
from keras_transformer.text.lines import text_of
from keras_transformer.text.words import NO_SPACES, has_no_spaces, piece_spans
from keras_transformer.types import StrPath

TERMS = Option("terms", "int32", 3)
# Searches lines again: from their numbers and the beginnings of their translations.
SearchAgain: TypeAlias = Callable[[Mapping[int, str]], Mapping[int, Translation]]

# A neighbour with this share of its attention on the source phrase belongs to the same translation.
MOSTLY = 0.5
# The term is written before a word with less attention than this, and does not replace it.
HARDLY = 0.2
_WORD = re.compile(rf"[{NO_SPACES}]|[^\W{NO_SPACES}]+(?:[-'\u2019][^\W{NO_SPACES}]+)*")


def glossaries_of_lines(glossary: Any) -> Iterator[Glossary]:
    """Yields a glossary for each line.

    Args:
        glossary: `Glossary`, a mapping from source to target phrases, or the path of a file, for
            all lines. Or a list of them, with one for each line.
    """
    if isinstance(glossary, (list, tuple)):
        return map(_as_glossary, glossary)
    return itertools.repeat(_as_glossary(glossary))


def _as_glossary(glossary: Glossary | Mapping[str, str] | StrPath) -> Glossary:
    if isinstance(glossary, Glossary):
        return glossary
    if isinstance(glossary, Mapping):
        return Glossary(glossary)
    if isinstance(glossary, (str, os.PathLike)):
        return Glossary.read(glossary)
    raise TypeError(
        f"`glossary` must be a Glossary, a dict from source to target phrases, or the path of a "
        f"file; or a list of them, one for each line. Got {glossary!r}."
    )


def terms_of_lines(
    lines: Iterable[str | bytes], glossary: Any, given: Iterable[Any] | None = None
) -> Iterator[list[str]]:
    """Yields the terms of each line: first the given ones, then the glossary's.

    Args:
        lines: iterable of str, or of bytes in UTF-8.
        glossary: as in `glossaries_of_lines`.
        given: a term or terms for all lines, or a list of them for each. Defaults to `None`: none.
    """
    given = [] if given is None else given
    by_line = given if TERMS.differs(given) else itertools.repeat(given)
    for line, terms, each in zip(lines, by_line, glossaries_of_lines(glossary), strict=False):
        text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
        terms = [terms] if isinstance(terms, str) else terms
        yield [*terms, *each.terms(text)]


def place_in_rows(
    rows: Mapping[int, Row],
    items: Sequence[str | bytes],
    results: Mapping[int, Translation],
    glossaries: Iterator[Glossary],
    tokenizer: Any,
    run: Callable[[dict[int, Row]], Mapping[int, Translation]],
) -> dict[int, Translation]:
    """Returns the results of rows with the terms of glossaries.

    Args:
        rows: dict from numbers of items to rows, with an input "target_prefix".
        items: the lines, of which some may have no row.
        results: dict from the same numbers to translations.
        glossaries: iterator, whose next values belong to `items`.
        tokenizer: of the target.
        run: function that searches rows.

    Raises:
        ValueError: there are fewer glossaries than items.
    """
    by_line = list(itertools.islice(glossaries, len(items)))
    if len(by_line) < len(items):
        raise ValueError("`glossary` has fewer values than there are lines.")
    given = {number: row.inputs["target_prefix"] for number, row in rows.items()}
    prefixes = {number: tokenizer.decode(ids) for number, ids in given.items()}

    def search_again(beginnings: Mapping[int, str]) -> Mapping[int, Translation]:
        again = {}
        for number, text in beginnings.items():
            is_kept = text.startswith(prefixes[number])  # unless a tokenizer hides its tokens
            ids = [*([] if is_kept else given[number]), *tokenizer.encode(text)]
            inputs = {**rows[number].inputs, "target_prefix": ids}
            again[number] = rows[number]._replace(inputs=inputs)
        return run(again)

    lines = {number: text_of(items[number]) for number in rows}
    return place_terms(lines, results, dict(enumerate(by_line)), prefixes, search_again)


def place_terms(
    lines: Mapping[int, str],
    results: Mapping[int, Translation],
    glossaries: Mapping[int, Glossary],
    prefixes: Mapping[int, str],
    search_again: SearchAgain,
) -> dict[int, Translation]:
    """Returns the translations with the terms of a glossary.

    Args:
        lines: dict from numbers to sources.
        results: dict from the same numbers to their translations, with alignments.
        glossaries: dict from the same numbers to their glossaries.
        prefixes: dict from the same numbers to texts. A translation that begins with its text keeps
            it.
        search_again: function from numbers of lines and beginnings of their translations to new
            translations.

    Returns:
        Dict of all results. A line with a term has one text. Its score is of the text that the
        search itself found after the same beginning.
    """
    results = dict(results)
    written = {  # characters that no further term may change
        number: len(prefix) if results[number].text.startswith(prefix) else 0
        for number, prefix in prefixes.items()
    }
    entries = {
        number: list(glossaries[number].occurrences(line))
        for number, line in lines.items()
        if results[number].text
    }
    while entries := {number: found for number, found in entries.items() if found}:
        places, texts = {}, {}
        for number, found in entries.items():
            line, result = lines[number], results[number]
            by_place = [(_place(line, result, entry, written[number]), entry) for entry in found]
            places[number], entry = min(by_place, key=lambda pair: pair[0].start)
            entries[number] = [other for other in found if other is not entry]
            texts[number] = result.text
        beginnings = {number: _beginning(texts[number], at) for number, at in places.items()}
        found = search_again(beginnings)
        kept = {number: result.text for number, result in found.items()}
        replaced = {
            number: beginnings[number] + _rest(texts[number], at)
            for number, at in places.items()
            if not _follows(kept[number], beginnings[number], texts[number], at)
        }
        found, kept = {**found, **(search_again(replaced) if replaced else {})}, kept | replaced
        for number, beginning in beginnings.items():
            results[number] = _cut(found[number], kept[number])
            written[number] = len(beginning)
    return results


def _place(line: str, result: Translation, entry: Occurrence, written: int) -> Occurrence:
    """Returns the place of a term, after the characters that earlier terms wrote."""
    text = result.text
    words = [match.span() for match in _WORD.finditer(text, written)]
    if not words:
        return Occurrence(len(text), len(text), entry.target)
    shares = [_attention(line, result, entry, *word) for word in words]
    first = last = int(np.argmax(shares))
    if shares[first] < HARDLY:
        return Occurrence(words[first][0], words[first][0], entry.target)
    while first and shares[first - 1] >= MOSTLY and _touch(text, words, first):
        first -= 1
    while last + 1 < len(words) and shares[last + 1] >= MOSTLY and _touch(text, words, last + 1):
        last += 1
    return Occurrence(words[first][0], words[last][1], entry.target)


def _attention(line: str, result: Translation, entry: Occurrence, start: int, end: int) -> float:
    """Returns the mean attention of a target word to a source phrase."""
    if not result.details or result.details[0].weights is None:
        return 0.0
    details = result.details[0]
    sources = _overlapping(line, details.source_pieces, entry.start, entry.end)
    targets = _overlapping(result.text, details.pieces, start, end)
    if not sources or not targets:
        return 0.0
    return float(details.weights[np.ix_(targets, sources)].sum(axis=1).mean())


def _overlapping(text: str, pieces: tuple[str, ...], start: int, end: int) -> list[int]:
    """Returns the numbers of the pieces that share characters with a part of a text."""
    spans = piece_spans(text, pieces)
    return [n for n, span in enumerate(spans) if span and span[0] < end and start < span[1]]


def _touch(text: str, words: list[tuple[int, int]], number: int) -> bool:
    """Returns whether only spaces separate a word from the word before it."""
    return not text[words[number - 1][1] : words[number][0]].strip()


def _beginning(text: str, place: Occurrence) -> str:
    """Returns a translation up to a term, with the term."""
    before = text[: place.start]
    gap = "" if place.start < place.end or not before or before[-1].isspace() else " "
    return before + gap + place.target


def _rest(text: str, place: Occurrence) -> str:
    """Returns the part of a translation that stands after a term."""
    rest = text[place.end :]
    is_inserted = place.start == place.end and rest[:1].isalnum()
    return " " + rest if is_inserted and not has_no_spaces(rest[:1]) else rest


def _follows(text: str, beginning: str, free: str, place: Occurrence) -> bool:
    """Returns whether a text continues its beginning well.

    The term ends at the end of a word, and the words that it replaces do not stand after it again.
    """
    if not text.startswith(beginning):
        return False
    rest = text[len(beginning) :]
    if rest[:1].isalnum() and not has_no_spaces(place.target[-1] + rest[0]):
        return False
    found, before = (_folded_words(part) for part in (rest, free[place.end :]))
    replaced = set(_folded_words(free[place.start : place.end]))
    return all(found.count(word) <= before.count(word) for word in replaced)


def _folded_words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)]


def _cut(result: Translation, text: str) -> Translation:
    """Returns a result with one text, which is the beginning of the text of another result.

    A text that the search could not write, because of its length, has no details.
    """
    details = result.details[:1] if result.text.startswith(text) else ()
    if result.text != text:
        details = tuple(_cut_details(each, text) for each in details)
    return Translation((text,), result.scores[:1], None, details)


def _cut_details(details: Details, text: str) -> Details:
    """Returns the details of the pieces and words that stand in the beginning of a text."""
    spans = piece_spans(text, details.pieces)
    count = max((number for number, span in enumerate(spans, 1) if span), default=0)
    words = tuple(text.split(" "))
    return replace(
        details,
        pieces=details.pieces[:count],
        token_scores=details.token_scores[:count],
        words=words,
        word_scores=details.word_scores[: len(words)],
        alignment=tuple(pair for pair in details.alignment if pair[1] < len(words)),
        weights=None if details.weights is None else details.weights[:count],
    )

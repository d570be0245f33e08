"""The translation of documents: all sentences of a document in one call.

A document is a sequence of parts: strings, which stay as they are, and units, which are translated.
"""

import itertools
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from keras_transformer.export.documents.guard import FRONT_MATTER, Guard, unmarked
from keras_transformer.export.documents.html import html_parts, subtitle_parts
from keras_transformer.export.documents.markdown import markdown_parts
from keras_transformer.export.documents.sentences import split_sentences
from keras_transformer.export.documents.units import (
    Span,
    Translated,
    Unit,
    has_letters,
    plain_parts,
    words,
)
from keras_transformer.text.glossary import Glossary
from keras_transformer.text.words import has_no_spaces, is_wide, piece_spans

logger = logging.getLogger(__name__)

# From the kind of a document to the function that takes a text apart: strings that stay, and units.
PARSERS: dict[str, Callable[..., Any]] = {
    "text": plain_parts,
    "html": html_parts,
    "markdown": markdown_parts,
    "subtitle": subtitle_parts,
}
# The token of a target language, for models with several.
_TARGET = re.compile(r">>[\w@-]{1,20}<<\s*")


class AlignedText(NamedTuple):
    """A translated sentence.

    Attributes:
        text: str.
        alignment: pairs of a word of the sentence and a word of `text`, counted from 0. Words are
            separated by white space.
    """

    text: str
    alignment: tuple[tuple[int, int], ...]


class AlignedPieces(AlignedText):
    """A translated sentence of a script without spaces; pieces of the text count as its words.

    Attributes:
        spans: the places of the pieces of the sentence, and of `text`.
    """

    spans: tuple[list[Span], list[Span]] = ([], [])


class Untranslated(AlignedText):
    """A sentence that stays as it is because of an error.

    Attributes:
        error: str.
    """

    error: str = "the search found no text"


class SentenceTranslator(Protocol):
    """Translates sentences and aligns their words."""

    def __call__(self, sentences: list[str]) -> Sequence[AlignedText]:
        """Returns one `AlignedText` for each sentence, in order."""


def aligned(translator: Any, options: Mapping[str, Any]) -> SentenceTranslator:
    """Makes a `SentenceTranslator` from a `Translator`.

    A model that was exported without `alignments=True` gives no alignment. The words of source and
    translation are then aligned by their relative position, so markup may be a few words off.

    Args:
        translator: `keras_transformer.export.runtime.Translator`.
        options: dict, options of its calls.
    """

    def translate(sentences: list[str]) -> list[AlignedText]:
        results = translator.n_best(sentences, **options)
        return [aligned_text(*pair) for pair in zip(sentences, results, strict=True)]

    return translate


def aligned_text(sentence: str, result: Any, number: int = 0) -> AlignedText:
    """Returns a text of a `Translation`. A sentence that cannot be translated stays as it is.

    Args:
        sentence: str, the source.
        result: `Translation`.
        number: int, rank of the text, from 0; the last if there are fewer. Defaults to 0.
    """
    if result.error or not result.texts:
        same = Untranslated(sentence, _by_position(sentence, sentence))
        same.error = result.error or same.error
        return same
    number = min(number, len(result.texts) - 1)
    text, details = result.texts[number], getattr(result, "details", ())
    if details and details[number].alignment:
        return _of_pieces(sentence, text, details[number]) or _of_words(details[number])
    return AlignedText(text, _by_position(sentence, text))


def _of_words(details: Any) -> AlignedText:
    """Returns a text with the alignment of its words."""
    # The tokenizer's words may hold white space, such as a no-break space.
    starts = [0, *itertools.accumulate(len(words(word)) for word in details.words)]
    pairs = tuple(
        (source, place)
        for source, target in details.alignment
        for place in range(starts[target], starts[target + 1])
    )
    return AlignedText(" ".join(details.words), pairs)


def _of_pieces(sentence: str, text: str, details: Any) -> AlignedText | None:
    """Returns a text with the alignment of its pieces; `None` if words serve better.

    Pieces serve a script without spaces, if they are the text character by character.
    """
    weights = details.weights
    if weights is None or not (has_no_spaces(sentence) or has_no_spaces(text)):
        return None
    sources, source_rows = _piece_spans(sentence, details.source_pieces)
    targets, rows = _piece_spans(text, details.pieces)
    if not sources or not targets:
        return None
    best = np.asarray(weights)[np.ix_(rows, source_rows)]
    pairs = {(int(one), two) for two, one in enumerate(best.argmax(axis=1))}
    alone = set(range(len(sources))) - {one for one, _ in pairs}
    pairs |= {(one, int(best[:, one].argmax())) for one in alone}
    found = AlignedPieces(text, tuple(sorted(pairs)))
    found.spans = sources, targets
    return found


def _piece_spans(text: str, pieces: Sequence[str]) -> tuple[list[Span], list[int]]:
    """Returns the span of each piece in a text, and its number; nothing if the text differs."""
    found = [(number, span) for number, span in enumerate(piece_spans(text, pieces)) if span]
    spans = [span for _, span in found]
    if "".join(text[start:end] for start, end in spans) != "".join(text.split()):
        return [], []
    return spans, [number for number, _ in found]


def _by_position(source: str, target: str) -> tuple[tuple[int, int], ...]:
    """Aligns each word with the source word at the same relative position."""
    sources, targets = len(words(source)), len(words(target))
    if not sources:
        return ()
    return tuple((place * sources // targets, place) for place in range(targets))


class DocumentTranslator:
    """Translates documents with a sentence model; the markup stays.

    Args:
        translate: `Translator`, or any other `SentenceTranslator`.
        language: str, the source language as an ISO 639-1 code. It decides where sentences
            end. Defaults to "en".
        target_language: str, the target language. `lang` attributes that name the source language
            then name this one. Defaults to `None`: they stay.
        source_prefix: str, written before each sentence, such as ">>fra<<" for a model with several
            targets. Defaults to "". A unit that begins with such a token gives it to each of its
            sentences.
        **options: options of `Translator.translate`, the same for all sentences. With `glossary`
            an entry applies to each sentence with its source phrase. Another `SentenceTranslator`
            takes none.

    Attributes:
        untranslated: number of sentences and units so far that stayed as they were: because of an
            error, or because the translation lost markup or code. Each is logged.

    Raises:
        TypeError: options were passed without a `Translator`.

    Example:

    >>> def shout(sentences):
    ...     return [
    ...         AlignedText(one.upper(), tuple((i, i) for i in range(len(one.split()))))
    ...         for one in sentences
    ...     ]
    >>> documents = DocumentTranslator(shout)
    >>> documents.html("<p>A <b>red</b> car.<br>Hi {{name}}!</p>")
    '<p>A <b>RED</b> CAR.<br>HI {{name}}!</p>'
    """

    def __init__(
        self,
        translate: Any,
        language: str = "en",
        target_language: str | None = None,
        source_prefix: str = "",
        **options: Any,
    ) -> None:
        is_runner = hasattr(translate, "n_best")
        if options and not is_runner:
            raise TypeError(
                f"{', '.join(options)}: options need a Translator, but {type(translate).__name__} "
                "was passed. Pass a Translator, or leave them out."
            )
        if isinstance(options.get("glossary"), (str, os.PathLike)):  # read once, not for each call
            options["glossary"] = Glossary.read(options["glossary"])
        self._translate: SentenceTranslator = translate
        if is_runner:
            self._translate = aligned(translate, options)
        self.language: str = language
        self.target_language: str | None = target_language
        self.source_prefix: str = source_prefix
        self.untranslated: int = 0

    def text(self, text: str) -> str:
        """Translates plain text. Lines, blank lines and indentation stay.

        Args:
            text: str.
        """
        return self.texts([text])[0]

    def html(self, text: str) -> str:
        """Translates an HTML document or a part of one.

        Tags, comments, scripts, styles, `code` and elements with `translate="no"` or the class
        "notranslate" stay as they are. So do attributes, except the ones that people read, such as
        `alt` and `title`. Inline elements enclose the words that are aligned with their words.

        Args:
            text: str.
        """
        return self.document(text, "html")

    def markdown(self, text: str) -> str:
        """Translates Markdown (GitHub's and the common dialects). Code, formulas, addresses and the
        blocks stay.

        Args:
            text: str.
        """
        return self.document(text, "markdown")

    def texts(self, texts: Sequence[str], partly: bool = True) -> list[str]:
        """Translates several plain texts in one call, each as `text` does.

        Args:
            texts: sequence of str.
            partly: bool, whether a text may have sentences that stayed as they were because of an
                error. Such a text becomes "" otherwise. Defaults to `True`.
        """
        return self.translated([self.read(text, "text") for text in texts], partly)

    def document(self, text: str, kind: str) -> str:
        """Translates a document of a format of `parsers.PARSERS`."""
        return self.translated([self.read(text, kind)])[0]

    def read(self, text: str, kind: str, **options: Any) -> "Document":
        """Reads a document; `translated` translates several of them in one call."""
        return Document(
            text, kind, self.language, self.target_language, self.source_prefix, **options
        )

    def translated(self, documents: "Sequence[Document]", partly: bool = True) -> list[str]:
        """Returns documents with their translated sentences; `partly` as in `texts`."""
        sentences = [sentence for document in documents for sentence in document.sentences]
        translations = list(self._translate(sentences) if sentences else ())
        for sentence, translation in zip(sentences, translations, strict=False):
            if isinstance(translation, Untranslated):
                self.keep(sentence, translation.error)
        rest, found = iter(translations), []
        for document in documents:
            own = list(itertools.islice(rest, len(document.sentences)))
            is_whole = not any(isinstance(one, Untranslated) for one in own)
            text = document.render(iter(own))
            for raw in document.kept:
                self.keep(raw, "markup or code would be lost or change its order")
            found.append(text if partly or (is_whole and not document.kept) else "")
        return found

    def keep(self, text: str, reason: str) -> None:
        """Counts and logs a text that stays as it is."""
        self.untranslated += 1
        logger.warning("not translated: %.100r: %s", text, reason)


class Document:
    """A document and its sentences.

    Args:
        text: str.
        kind: str, a key of `parsers.PARSERS`.
        language: str, the source language as an ISO 639-1 code.
        target_language, source_prefix: as in `DocumentTranslator`.
        **options: of the parser.

    Attributes:
        sentences: list of str, the sentences to translate, in order.
        kept: list of str, the units that the last call of `render` left as they were.
    """

    def __init__(
        self,
        text: str,
        kind: str,
        language: str,
        target_language: str | None = None,
        source_prefix: str = "",
        **options: Any,
    ) -> None:
        front = FRONT_MATTER.match(text) if kind in ("html", "markdown") else None
        self._settings = front[0] if front else ""
        self._guard = Guard(text[len(self._settings) :])
        if kind == "html" and target_language:
            options["languages"] = language, target_language
        self._parts = PARSERS[kind](self._guard.text, **options)
        self.units: list[Unit] = []
        for part in self._parts:
            if isinstance(part, Unit):
                self.units += [*part.inner(), part]
        self._texts = [_UnitSentences(unit.text, language, source_prefix) for unit in self.units]
        self.sentences: list[str] = [one for each in self._texts for one in each.sentences]
        self.kept: list[str] = []

    def render(self, translations: Iterator[AlignedText]) -> str:
        """Returns the translated document; takes one translation for each of `sentences`.

        A unit whose markup or code would be lost, or change its order, stays as it is.
        """
        rendered: dict[int, str] = {}
        self.kept = []
        for unit, text in zip(self.units, self._texts, strict=True):
            found = unit.render(text.joined(translations), rendered)
            if found is None or not unit.accepts(found):
                found = unit.raw
                self.kept.append(self._guard.restore(found))
            rendered[id(unit)] = found
        parts = [part if isinstance(part, str) else rendered[id(part)] for part in self._parts]
        return self._settings + self._guard.restore("".join(parts))


class _UnitSentences:
    """The sentences of a unit's text.

    Args:
        text: str.
        language, prefix: as in `Document`.

    Attributes:
        sentences: list of str, the sentences to translate, each with its prefix.
    """

    def __init__(self, text: str, language: str, prefix: str) -> None:
        token = _TARGET.match(text)
        self._text, self._start = text, token.end() if token else 0
        prefix = token[0].strip() if token else prefix
        self._prefix = f"{prefix} " if prefix else ""
        self._spans = [
            (self._start + start, self._start + stop)
            for start, stop in split_sentences(text[self._start :], language)
        ]
        self.sentences = [
            self._prefix + text[start:stop]
            for start, stop in self._spans
            if has_letters(text[start:stop])
        ]

    def joined(self, translations: Iterator[AlignedText]) -> Translated:
        """Returns the text with its translated sentences.

        The white space between two sentences stays. If only one of both languages writes sentences
        without spaces between them, it follows the translation.
        """
        parts: list[str] = []
        source_words: list[Span] = []
        found: list[Span] = []
        pairs: list[tuple[int, int]] = []
        end, length, last = self._start, 0, ""
        for start, stop in self._spans:
            sentence = self._text[start:stop]
            aligned = AlignedText(sentence, _by_position(sentence, sentence))
            prefix = 0
            if has_letters(sentence):
                aligned, prefix = next(translations), len(self._prefix)
            text = unmarked(aligned.text)
            sources, targets = words(self._prefix[:prefix] + sentence), words(text)
            if isinstance(aligned, AlignedPieces):
                sources, targets = aligned.spans
            gap = self._text[end:start]
            if last:
                was_wide = is_wide(self._text[end - 1]) or is_wide(sentence[:1])
                becomes_wide = is_wide(last[-1:]) or is_wide(text[:1])
                if was_wide != becomes_wide:
                    gap = "" if becomes_wide else gap or " "
            parts += [gap, text]
            length += len(gap)
            own = [number for number, (first, _) in enumerate(sources) if first >= prefix]
            places = {number: len(source_words) + place for place, number in enumerate(own)}
            pairs += [
                (places[one], len(found) + two) for one, two in aligned.alignment if one in places
            ]
            shift = start - prefix
            source_words += [
                (sources[number][0] + shift, sources[number][1] + shift) for number in own
            ]
            found += [(first + length, final + length) for first, final in targets]
            length, end, last = length + len(text), stop, text or last
        return Translated("".join([*parts, self._text[end:]]), source_words, found, pairs)

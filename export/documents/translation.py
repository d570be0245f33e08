"""The translation of documents: all sentences of a document in one call.

A document is a sequence of parts: strings, which stay as they are, and units, which are translated.
"""

import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from keras_transformer.export.documents.sentences import split_sentences
from keras_transformer.export.documents.units import Unit, has_letters, plain_parts, words
from keras_transformer.text.glossary import Glossary

logger = logging.getLogger(__name__)

Parts: TypeAlias = Sequence[str | Unit]


class AlignedText(NamedTuple):
    """A translated sentence.

    Attributes:
        text: str.
        alignment: pairs of a word of the sentence and a word of `text`, counted from 0. Words are
            separated by white space.
    """

    text: str
    alignment: tuple[tuple[int, int], ...]


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
    if getattr(result, "details", ()) and result.details[number].alignment:
        details = result.details[number]
        # The tokenizer's words may hold white space, such as a no-break space.
        starts = [0, *itertools.accumulate(len(words(word)) for word in details.words)]
        pairs = tuple(
            (source, place)
            for source, target in details.alignment
            for place in range(starts[target], starts[target + 1])
        )
        return AlignedText(" ".join(details.words), pairs)
    text = result.texts[number]
    return AlignedText(text, _by_position(sentence, text))


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
        **options: options of `Translator.translate`, the same for all sentences. With `glossary`
            an entry applies to each sentence with its source phrase. Another `SentenceTranslator`
            takes none.

    Attributes:
        untranslated: number of sentences so far that stayed as they were because of an error. Each
            is logged.

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

    def __init__(self, translate: Any, language: str = "en", **options: Any) -> None:
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
        self.untranslated: int = 0

    def text(self, text: str) -> str:
        """Translates plain text. Lines, blank lines and indentation stay.

        Args:
            text: str.
        """
        return self.texts([text])[0]

    def html(self, text: str) -> str:
        """Translates an HTML document or a part of one.

        Tags, attributes, comments, scripts, styles, `code` and elements with `translate="no"` stay
        as they are. Inline elements enclose the words that are aligned with their words.

        Args:
            text: str.
        """
        from keras_transformer.export.documents.html import html_parts

        return self.parts(html_parts(text))

    def markdown(self, text: str) -> str:
        """Translates Markdown (CommonMark and tables). Code, addresses and the blocks stay.

        Args:
            text: str.
        """
        from keras_transformer.export.documents.markdown import markdown_parts

        return self.parts(markdown_parts(text))

    def texts(self, texts: Sequence[str], partly: bool = True) -> list[str]:
        """Translates several plain texts in one call, each as `text` does.

        Args:
            texts: sequence of str.
            partly: bool, whether a text may have sentences that stayed as they were because of an
                error. Such a text becomes "" otherwise. Defaults to `True`.
        """
        documents = [Document(plain_parts(text), self.language) for text in texts]
        return self._translated(documents, partly)

    def parts(self, parts: Parts) -> str:
        """Translates the units among the parts of a document, and joins all parts."""
        return self._translated([Document(parts, self.language)])[0]

    def _translated(self, documents: "list[Document]", partly: bool = True) -> list[str]:
        sentences = [sentence for document in documents for sentence in document.sentences]
        translations = list(self._translate(sentences) if sentences else ())
        for sentence, translation in zip(sentences, translations, strict=False):
            if isinstance(translation, Untranslated):
                self.untranslated += 1
                logger.warning("not translated: %.100r: %s", sentence, translation.error)
        rest, found = iter(translations), []
        for document in documents:
            own = list(itertools.islice(rest, len(document.sentences)))
            is_whole = not any(isinstance(one, Untranslated) for one in own)
            found.append(document.render(iter(own)) if partly or is_whole else "")
        return found


class Document:
    """A document and its sentences.

    Args:
        parts: strings, which stay as they are, and units.
        language: str, the source language as an ISO 639-1 code.

    Attributes:
        sentences: list of str, the sentences to translate, in order.
    """

    def __init__(self, parts: Parts, language: str) -> None:
        self._parts = parts
        self._spans = [
            split_sentences(part.text, language) if isinstance(part, Unit) else [] for part in parts
        ]
        self.sentences: list[str] = [
            part.text[start:stop]
            for part, spans in zip(parts, self._spans, strict=True)
            for start, stop in spans
            if has_letters(part.text[start:stop])
        ]

    def render(self, translations: Iterator[AlignedText]) -> str:
        """Returns the translated document; takes one translation for each of `sentences`."""
        return "".join(
            _render(part, spans, translations) if isinstance(part, Unit) else part
            for part, spans in zip(self._parts, self._spans, strict=True)
        )


def _render(unit: Unit, spans: Iterable[tuple[int, int]], translations: Iterator[Any]) -> str:
    """Returns a unit with its translated sentences; the white space between them stays."""
    texts, pairs, sources, targets, end = [], [], 0, 0, 0
    for start, stop in spans:
        sentence = unit.text[start:stop]
        text, alignment = sentence, _by_position(sentence, sentence)
        if has_letters(sentence):
            text, alignment = next(translations)
        texts += [unit.text[end:start], text]
        pairs += [(sources + one, targets + two) for one, two in alignment]
        sources, targets, end = sources + len(words(sentence)), targets + len(words(text)), stop
    return unit.render("".join([*texts, unit.text[end:]]), pairs)

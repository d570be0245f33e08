"""Splits a text into sentences, by the rules of the package sentencex."""

import re
from collections.abc import Iterator

from keras_transformer.startup import install

# Characters of a text that are divided at once, and the ends of sentences.
LONGEST = 2_000
_MARK = re.compile(r"[.!?]\s+|[\u3002\uff01\uff1f\u0964\u104b]")


def split_sentences(text: str, language: str = "en") -> list[tuple[int, int]]:
    """Returns the start and end of each sentence, without white space around it.

    Args:
        text: str, one paragraph.
        language: str, an ISO 639-1 code. It chooses abbreviations and marks. Defaults to "en".

    Returns:
        List of pairs of int, in order. All other characters of the text are white space.

    Raises:
        ImportError: sentencex is not installed.

    Example:

    >>> text = "Dr. Smith waits.  Who else?"
    >>> [text[start:stop] for start, stop in split_sentences(text)]
    ['Dr. Smith waits.', 'Who else?']
    """
    try:
        import sentencex
    except ImportError as error:
        raise missing("sentencex", error) from error
    text = re.sub(r"[^\S\x00-\x7f]", " ", text)  # the package fails at "A\u00a0."
    spans, end = [], 0
    for begin, stop in _chunks(text):
        for sentence in sentencex.segment(language, text[begin:stop]):
            if sentence := sentence.strip():
                start = text.index(sentence, end)
                end = start + len(sentence)
                spans.append((start, end))
    return spans


def _chunks(text: str) -> Iterator[tuple[int, int]]:
    """Yields spans of at most `LONGEST` characters, because the package takes quadratic time.

    A chunk ends after the mark of a sentence if it can, or at a space.
    """
    start = 0
    while len(text) - start > LONGEST:
        part = text[start : start + LONGEST]
        ends = [match.end() for match in _MARK.finditer(part, LONGEST // 2)]
        stop = start + (ends[-1] if ends else part.rfind(" ", LONGEST // 2) + 1 or LONGEST)
        yield start, stop
        start = stop
    yield start, len(text)


def missing(package: str, error: ImportError) -> ImportError:
    """Returns the error that names the extra of a missing package."""
    return ImportError(
        f"The package {package} is missing ({error}): {install('service')}",
        name=package,
    )

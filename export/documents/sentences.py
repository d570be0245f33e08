"""Splits a text into sentences, by the rules of the package sentencex."""

import re


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
    for sentence in sentencex.segment(language, text):
        if sentence := sentence.strip():
            start = text.index(sentence, end)
            end = start + len(sentence)
            spans.append((start, end))
    return spans


def missing(package: str, error: ImportError) -> ImportError:
    """Returns the error that names the extra of a missing package."""
    return ImportError(
        f"The package {package} is missing ({error}): "
        "pip install 'keras-transformer-onnx[documents]'.",
        name=package,
    )

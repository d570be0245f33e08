"""Finds the format of a file, and translates it into another file."""

import pathlib
from collections.abc import Callable

from keras_transformer.export.documents.catalogues import catalogue
from keras_transformer.export.documents.subtitles import subtitles
from keras_transformer.export.documents.translation import DocumentTranslator
from keras_transformer.files import whole_file
from keras_transformer.types import StrPath

# The suffix of a file and its format.
SUFFIXES = {
    ".txt": "text",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".srt": "subtitles",
    ".vtt": "subtitles",
    ".po": "catalogue",
    ".pot": "catalogue",
}


def format_of(path: StrPath) -> str:
    """Returns the format of a file by its name, one of `FORMATS`.

    Raises:
        ValueError: no format has this suffix.
    """
    suffix = pathlib.Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(
            f"{path} has the suffix {suffix!r}, which names no format. Name one of {list(FORMATS)}."
        )
    return SUFFIXES[suffix]


def translate_file(
    documents: DocumentTranslator, path: StrPath, output: StrPath, kind: str | None = None
) -> None:
    """Translates a file. The output is written aside and moved into place.

    Args:
        documents: `DocumentTranslator`.
        path: str or path-like, a file in UTF-8.
        output: str or path-like, the new file.
        kind: str, one of `FORMATS`. Defaults to `None`: by the suffix of `path`.

    Raises:
        ValueError: the format is not known, or the file is not in UTF-8 or not of this format.
        ImportError: the library that reads the format is not installed.

    Example:

    >>> documents = DocumentTranslator(Translator("out/onnx"))  # doctest: +SKIP
    >>> translate_file(documents, "page.html", "page.de.html")  # doctest: +SKIP
    """
    kind = format_of(path) if kind is None else kind
    if kind not in FORMATS:
        raise ValueError(f"format {kind!r} is not known. Name one of {list(FORMATS)}.")
    try:
        text = pathlib.Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8: {error}. Convert it first.") from error
    translated = FORMATS[kind](documents, text)
    with whole_file(output) as temporary:
        temporary.write_bytes(translated.encode())


# {format: function of a `DocumentTranslator` and a text}.
FORMATS: dict[str, Callable[[DocumentTranslator, str], str]] = {
    "text": DocumentTranslator.text,
    "html": DocumentTranslator.html,
    "markdown": DocumentTranslator.markdown,
    "subtitles": subtitles,
    "catalogue": catalogue,
}

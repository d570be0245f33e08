"""Finds the format of a file, and translates it into another file."""

import pathlib
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING

from keras_transformer.export.documents.sentences import missing
from keras_transformer.export.documents.translation import DocumentTranslator
from keras_transformer.files import whole_file
from keras_transformer.types import StrPath

if TYPE_CHECKING:
    import polib

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
    translated = FORMATS[kind](documents, text, pathlib.Path(path).suffix.lower())
    with whole_file(output) as temporary:
        temporary.write_bytes(translated.encode())


def _subtitles(documents: DocumentTranslator, text: str, suffix: str) -> str:
    """Translates subtitles. Times stay, and no subtitle gets more lines."""
    try:
        import pysubs2
    except ImportError as error:
        raise missing("pysubs2", error) from error
    kind = suffix.removeprefix(".")
    try:
        subtitles = pysubs2.SSAFile.from_string(text, format_=kind)
    except (pysubs2.exceptions.Pysubs2Error, ValueError) as error:
        raise ValueError(f"these are not subtitles of the format {kind!r}: {error}") from error
    if not len(subtitles) and text.strip() not in ("", "WEBVTT"):
        raise ValueError(f"no subtitle of the format {kind!r} was found in a file that holds text.")
    lines = documents.texts([" ".join(event.plaintext.split()) for event in subtitles])
    for event, line in zip(subtitles, lines, strict=True):
        event.plaintext = "\n".join(_wrapped(line, event.plaintext.count("\n") + 1))
    return subtitles.to_string(kind)


def _wrapped(text: str, count: int) -> list[str]:
    """Wraps a text into at most `count` lines, the longest of them as short as possible."""
    for width in range(-(-len(text) // count) or 1, len(text) + 1):
        lines = textwrap.wrap(text, width, break_long_words=False)
        if len(lines) <= count:
            return lines
    return [text]


def _catalogue(documents: DocumentTranslator, text: str, suffix: str) -> str:
    """Translates gettext messages without any translation, and marks them as fuzzy.

    Empty plural forms are filled; other forms stay.
    """
    try:
        import polib
    except ImportError as error:
        raise missing("polib", error) from error
    try:
        catalogue = polib.pofile(text)
    except (OSError, ValueError) as error:
        raise ValueError(f"this is not a catalogue of gettext: {error}") from error
    entries = [entry for entry in catalogue if not entry.obsolete and _is_missing(entry)]
    messages = [message for e in entries for message in (e.msgid, e.msgid_plural or "")]
    found = iter(documents.texts(messages))
    for entry, one, more in zip(entries, found, found, strict=True):
        if entry.msgid_plural:
            places = entry.msgstr_plural or {0: "", 1: ""}
            entry.msgstr_plural = {
                place: known or (more if place else one) for place, known in places.items()
            }
        else:
            entry.msgstr = one
        entry.fuzzy = True
    return str(catalogue)


def _is_missing(entry: "polib.POEntry") -> bool:
    """Returns whether a message lacks a translation or a plural form."""
    if entry.msgid_plural:
        return not all(entry.msgstr_plural.values() or [""])
    return not entry.msgstr


# {format: function of a `DocumentTranslator`, a text and the file's suffix}.
FORMATS: dict[str, Callable[[DocumentTranslator, str, str], str]] = {
    "text": lambda documents, text, suffix: documents.text(text),
    "html": lambda documents, text, suffix: documents.html(text),
    "markdown": lambda documents, text, suffix: documents.markdown(text),
    "subtitles": _subtitles,
    "catalogue": _catalogue,
}

"""Finds the format of a file, and translates it into another file."""

import html
import pathlib
import re
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

# A line of times, and the number before it.
_CUE = re.compile(r"^(?:\d+[ \t]*\n)?[ \t]*\d[\d:.,]*[ \t]*-->.*", re.MULTILINE)
_VTT_TAG = re.compile(r"<[^<>]*>")
_SRT_TAG = re.compile(r"</?[a-zA-Z][^<>]*>|\{\\[^{}]*\}")


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


def _subtitles(documents: DocumentTranslator, text: str) -> str:
    """Translates the texts of SubRip or WebVTT. All between them stays; no text gets more lines."""
    is_vtt, has_cr = text.startswith("WEBVTT"), "\r\n" in text
    text = re.sub(r"\r\n?", "\n", text)
    cues = list(_CUE.finditer(text))
    if not cues and not is_vtt and text.strip():
        raise ValueError(
            "no subtitle was found in a file that holds text: no line is like "
            "00:00:01,000 --> 00:00:02,000."
        )
    raws = []
    ends = [*(cue.start() for cue in cues), len(text)][1:]
    for cue, end in zip(cues, ends, strict=True):
        raw = text[cue.end() : end].rstrip()
        raws.append(raw.partition("\n\n")[0] if is_vtt else raw)  # notes may follow a text
    plain = [(_VTT_TAG if is_vtt else _SRT_TAG).sub("", raw).strip() for raw in raws]
    if is_vtt:
        plain = [html.unescape(one) for one in plain]
    parts, here = [], 0
    lines = documents.texts([" ".join(one.split()) for one in plain])
    for cue, raw, one, line in zip(cues, raws, plain, lines, strict=True):
        new = "\n".join(_wrapped(line, one.count("\n") + 1))
        if is_vtt:
            new = html.escape(new, quote=False)
        parts += [text[here : cue.end()], "\n" + new if new else raw]
        here = cue.end() + len(raw)
    translated = "".join([*parts, text[here:]])
    return translated.replace("\n", "\r\n") if has_cr else translated


def _wrapped(text: str, count: int) -> list[str]:
    """Wraps a text into at most `count` lines, the longest of them as short as possible."""
    for width in range(-(-len(text) // count) or 1, len(text) + 1):
        lines = textwrap.wrap(text, width, break_long_words=False)
        if len(lines) <= count:
            return lines
    return [text]


def _catalogue(documents: DocumentTranslator, text: str) -> str:
    """Translates gettext messages without any translation, and marks them as fuzzy.

    Empty plural forms are filled; other forms stay. A message that cannot be translated stays
    empty.
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
    found = iter(documents.texts(messages, partly=False))
    for entry, one, more in zip(entries, found, found, strict=True):
        if entry.msgid_plural:
            places = entry.msgstr_plural or {0: "", 1: ""}
            first = one if len(places) > 1 else more
            filled = {place: known or (more if place else first) for place, known in places.items()}
            is_new, entry.msgstr_plural = filled != places, filled
        else:
            is_new, entry.msgstr = bool(one), one
        if is_new:
            entry.fuzzy = True
    return str(catalogue)


def _is_missing(entry: "polib.POEntry") -> bool:
    """Returns whether a message lacks a translation or a plural form."""
    if entry.msgid_plural:
        return not all(entry.msgstr_plural.values() or [""])
    return not entry.msgstr


# {format: function of a `DocumentTranslator` and a text}.
FORMATS: dict[str, Callable[[DocumentTranslator, str], str]] = {
    "text": DocumentTranslator.text,
    "html": DocumentTranslator.html,
    "markdown": DocumentTranslator.markdown,
    "subtitles": _subtitles,
    "catalogue": _catalogue,
}

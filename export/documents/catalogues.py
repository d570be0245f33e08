"""Translates catalogues of gettext."""

import html
import re
from typing import TYPE_CHECKING

from keras_transformer.export.documents.code_kinds import UNNUMBERED
from keras_transformer.export.documents.sentences import missing
from keras_transformer.export.documents.translation import Document, DocumentTranslator

if TYPE_CHECKING:
    import polib

# Forms of conversions: flags of formats that allow numbers in them, so that they can change places;
# a conversion with its number; and the first number.
_FORMS = {
    "percent": (
        frozenset("c-format objc-format php-format java-printf-format".split()),
        re.compile(r"%(\d+)\$"),
        1,
    ),
    "brace": (
        frozenset("python-brace-format rust-format".split()),
        re.compile(r"\{(\d+)(?=[:}])"),
        0,
    ),
}


def catalogue(documents: DocumentTranslator, text: str) -> str:
    """Translates messages without any translation, and marks them as fuzzy.

    Empty plural forms are filled; other forms stay. A message that cannot be translated stays
    empty. So does one whose conversions would change their order and cannot have numbers.

    Raises:
        ValueError: the text is no catalogue.
        ImportError: polib is not installed.
    """
    try:
        import polib
    except ImportError as error:
        raise missing("polib", error) from error
    try:
        # polib reads a file if its argument is the path of one. No path begins with a line's end.
        found = polib.pofile(f"\n{text}")
    except (OSError, ValueError) as error:
        raise ValueError(f"this is not a catalogue of gettext: {error}") from error
    if text.strip() and not (len(found) or found.metadata or found.header):
        raise ValueError("this is not a catalogue of gettext: it has no message")
    entries = [entry for entry in found if not entry.obsolete and _is_missing(entry)]
    messages = [
        (entry, message) for entry in entries for message in (entry.msgid, entry.msgid_plural or "")
    ]
    numbered = [_with_numbers(message) for _, message in messages]
    read = [_read(documents, message) for message in numbered]
    translated = iter(
        _in_order(documents, entry, *texts)
        for (entry, _), *texts in zip(
            messages, numbered, documents.translated(read, partly=False), strict=True
        )
    )
    for entry, one, more in zip(entries, translated, translated, strict=True):
        if entry.msgid_plural:
            places = entry.msgstr_plural or {0: "", 1: ""}
            first = one if len(places) > 1 else more
            filled = {place: known or (more if place else first) for place, known in places.items()}
            is_new, entry.msgstr_plural = filled != places, filled
        else:
            is_new, entry.msgstr = bool(one), one
        if is_new:
            entry.fuzzy = True
    return str(found)


def _is_missing(entry: "polib.POEntry") -> bool:
    """Returns whether a message lacks a translation or a plural form."""
    if entry.msgid_plural:
        return not all(entry.msgstr_plural.values() or [""])
    return not entry.msgstr


def _read(documents: DocumentTranslator, message: str) -> Document:
    """Reads a message; one with tags is HTML."""
    if not re.search(r"<[a-zA-Z/][^<>]*>", message):
        return documents.read(message, "text")
    return documents.read(message, "html", escapes=html.unescape(message) != message)


def _with_numbers(message: str) -> str:
    """Returns a message with numbers in its conversions; unchanged if it has some or needs none."""
    for name, (_, pattern, first) in _FORMS.items():
        found = [match for match in UNNUMBERED.finditer(message) if match[name] is not None]
        if len(found) < 2 or pattern.search(message) or any("*" in match[0] for match in found):
            continue
        for number, match in reversed([*enumerate(found, first)]):
            new = f"%{number}${match[name]}" if first else f"{{{number}{match[name]}}}"
            message = message[: match.start()] + new + message[match.end() :]
    return message


def _in_order(
    documents: DocumentTranslator, entry: "polib.POEntry", message: str, translated: str
) -> str:
    """Returns a translation whose conversions fit the arguments of the message."""
    source = entry.msgid if _with_numbers(entry.msgid) == message else entry.msgid_plural
    for flags, pattern, _ in _FORMS.values():
        if not translated or pattern.search(source):  # the author's numbers
            continue
        if pattern.findall(translated) == pattern.findall(message):
            translated = pattern.sub(lambda match: match[0][0], translated)
        elif flags.isdisjoint(entry.flags):
            documents.keep(source, "its conversions would change their order")
            return ""
    return translated

"""The guard of documents: code in a text, which a translation may not change.

`code_kinds` lists the code. Two groups differ in the time at which they are found:

- Templates, formulas and links of a wiki may hold characters of HTML and Markdown. `Guard` replaces
  them by marks before a document is parsed.
- Conversions, names in braces and addresses are found in the text between the markup, by `pieces`.

A plural or a choice of ICU MessageFormat is code with texts in it, and these are translated.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from keras_transformer.export.documents.code_kinds import (
    BLOCK,
    CLOSE,
    INLINE,
    MARK,
    MARKUP,
    OPEN,
    ORDERED,
    any_of,
)

# Code that begins with "<", and so would begin a block in Markdown.
TAG_MARK = re.compile(f"{OPEN}0\\d")
_MARKUP, _INLINE = re.compile(any_of(MARKUP), re.M), any_of(INLINE)
# The start of a branch of a choice, and the end of the choice.
_BRANCH = re.compile(r"\s*(?:offset:\d+\s*)?(?:=\d+|\w+)\s*\{")
_END = re.compile(r"\s*\}")
_BRACE = re.compile(r"[{}]")
LONGEST_CHOICE = 5_000  # characters
# The settings at the start of a page.
FRONT_MATTER = re.compile(
    r"(---|\+\+\+)[ \t]*\r?\n(?=\S).*?^(?:\1|\.{3})[ \t]*(?:\r?\n|\Z)", re.S | re.M
)


class Piece(NamedTuple):
    """A piece of a text.

    Attributes:
        text: str.
        is_code: bool.
        branches: for a plural or a choice, its code and the texts of its branches in turn; it
            begins and ends with code. Otherwise empty.
        is_ordered: bool, whether the code belongs to a block, so that its order counts.
    """

    text: str
    is_code: bool
    branches: Sequence[str] = ()
    is_ordered: bool = False


class Guard:
    """Replaces the code of a document by marks, and puts it back.

    Args:
        text: str, the document.

    Attributes:
        text: str, the document with marks.

    Example:

    >>> guard = Guard("{% if a < b %}Hello{% endif %}")
    >>> guard.restore(guard.text.upper())
    '{% if a < b %}HELLO{% endif %}'
    """

    def __init__(self, text: str) -> None:
        self._code: list[str] = []
        self._closed = set(re.findall(r"\[/([a-z][\w-]*)\]", text))
        self.text: str = _MARKUP.sub(self._mark, text)

    def restore(self, text: str) -> str:
        """Returns a text with the code of its marks."""
        return re.sub(MARK, lambda mark: self._code[int(re.search(r"\d+", mark[0])[0])], text)

    def _mark(self, match: re.Match[str]) -> str:
        self._code.append(match[0])
        zero = "0" * match[0].startswith("<")  # see `TAG_MARK`
        name = re.match(r"\[/?([a-z][\w-]*)", match[0])
        is_ordered = name[1] in self._closed if name else BLOCK.match(match[0])
        ordered = ORDERED if is_ordered else ""
        return f"{OPEN}{zero}{len(self._code) - 1}{ordered}{CLOSE}"


def unmarked(text: str) -> str:
    """Returns the output of a model without the characters of marks."""
    return re.sub(f"[{OPEN}{CLOSE}{ORDERED}]", "", text)


def placeholders(more: str = "") -> re.Pattern[str]:
    """Returns the pattern of code for `pieces`. `more` is the pattern of further code."""
    return re.compile(f"{more}|{_INLINE}" if more else _INLINE)


def pieces(text: str, pattern: re.Pattern[str]) -> Iterator[Piece]:
    """Divides a text at its code.

    >>> [piece.text for piece in pieces("Dear {name}!", placeholders())]
    ['Dear ', '{name}', '!']
    """
    end = place = 0
    while match := pattern.search(text, place):
        branches, stop, place = (), match.end(), match.end()
        if match["choice"]:
            branches, stop = _branches(text, match)
            if not branches:
                continue
        if text[end : match.start()]:
            yield Piece(text[end : match.start()], False)
        yield Piece(text[match.start() : stop], True, branches, bool(match["ordered"]))
        end = place = stop
    if text[end:]:
        yield Piece(text[end:], False)


def _branches(text: str, header: re.Match[str]) -> tuple[Sequence[str], int]:
    """Returns the parts of a choice and its end; no parts if its braces do not match."""
    found, begin, place = [], header.start(), header.end()
    while branch := _BRANCH.match(text, place):
        depth, stop = 1, None
        for brace in _BRACE.finditer(text, branch.end(), begin + LONGEST_CHOICE):
            depth += 1 if brace[0] == "{" else -1
            if not depth:
                stop = brace.start()
                break
        if stop is None:
            return (), place
        found += [text[begin : branch.end()], text[branch.end() : stop]]
        begin, place = stop, stop + 1
    end = _END.match(text, place)
    return ([*found, text[begin : end.end()]], end.end()) if end and found else ((), place)

"""The guard of documents: code in a text, which a translation may not change.

Two kinds of code differ in the time at which they are found:

- Templates, formulas and links of a wiki may hold characters of HTML and Markdown. `Guard` replaces
  them by marks before a document is parsed.
- Conversions, names in braces and addresses are found in the text between the markup, by `pieces`.

A plural or a choice of ICU MessageFormat is code with texts in it, and these are translated.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

# A number between two characters that no script uses.
_OPEN, _CLOSE = "\ue000", "\ue001"
MARK = f"{_OPEN}\\d+{_CLOSE}"
# A mark of code that begins with "<", and so would begin a block in Markdown.
TAG_MARK = re.compile(f"{_OPEN}0\\d")
# Templates (Jinja, Django, Liquid, Twig, Hugo, Handlebars, ERB, EJS, PHP), names of shells and
# scripts, links of a wiki, formulas between brackets of TeX, and the characters of marks.
_CODE = re.compile(
    r"\{\{\{[^{}`\n]{0,500}\}\}\}"
    r"|\{\{(?!\s*\w+\s*,\s*(?:plural|select|selectordinal)\s*,)(?:[^{}`\n]|\{[^{}`\n]*\}){0,500}\}\}"
    r"|\{%[^`\n]{0,500}?%\}|\{#(?=\s)[^`\n]{0,500}?#\}"
    r"|<%(?:(?!%>)[\s\S]){0,5000}%>|<\?(?:php|=)(?:(?!\?>)[\s\S]){0,5000}\?>"
    r"|[$#%@]\{[^{}`\n]{0,200}\}|\[\[[^\[\]\n]{1,200}\]\]"
    r"|\\{1,2}\((?:(?!\\{1,2}\)).){1,500}\\{1,2}\)"
    r"|\\{1,2}\[(?:(?!\\{1,2}\]).){0,500}?(?:[\^_=]|\\[a-zA-Z])(?:(?!\\{1,2}\]).){0,500}\\{1,2}\]"
    rf"|[{_OPEN}{_CLOSE}]"
)
# A plural or a choice; then names in braces, forms of ICU without texts, conversions of printf,
# variables between percent signs, formulas between dollars, addresses, and short names of emoji.
_PLACEHOLDER = (
    r"(?P<choice>\{\s*\w{1,99}\s*,\s*(?:plural|select|selectordinal)\s*,)"
    rf"|{MARK}"
    r"|[$%#]?\{[^\s{}]{0,200}\}"
    r"|\{\s*[$@]?[\w.-]{1,99}\s*(?:,\s*(?:number|date|time|duration|ordinal|spellout|list)"
    r"\s*(?:,[^{}\n]{0,200})?)?\}"
    r"|%%|%(?P<known>\d{1,3}\$|\(\w{1,99}\))?[-+#0]?(?:\d{1,3}|\*)?(?:\.(?:\d{1,3}|\*))?"
    r"(?:hh?|ll?|[Lqjzt])?[a-zA-Z@](?(known)|(?=x%|\W|$))"
    r"|(?<!\w)%[A-Za-z_]\w{0,99}%(?!\w)"
    r"|\$\$[^$\n]{1,500}\$\$|\$(?![\s$])(?=[^$\n]{0,500}[\\^_{])[^$\n]{1,500}(?<!\s)\$(?!\w)"
    r"|(?:(?:https?|ftp)://|\bwww\.)[^\s<>\"]*[^\s<>\".,;:!?)\]}]"
    r"|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+"
    r"|(?<![\w:]):[a-z][a-z0-9_+-]{0,50}:(?![\w:])"
)
# Conversions of printf and braces without a number or a name: their order says what they show.
_FORM = r"[-+#0]?(?:\d{1,3}|\*)?(?:\.(?:\d{1,3}|\*))?(?:hh?|ll?|[Lqjzt])?[a-zA-Z@]"
UNNUMBERED = re.compile(rf"%%|%(?P<percent>{_FORM})(?=x%|\W|$)|\{{(?P<brace>(?::[^{{}}]*)?)\}}")
# The start of a branch of a choice, and the end of the choice.
_BRANCH = re.compile(r"\s*(?:offset:\d+\s*)?(?:=\d+|\w+)\s*\{")
_END = re.compile(r"\s*\}")
_BRACE = re.compile(r"[{}]")
LONGEST_CHOICE = 5_000  # characters


class Piece(NamedTuple):
    """A piece of a text.

    Attributes:
        text: str.
        is_code: bool.
        branches: for a plural or a choice, its code and the texts of its branches in turn; it
            begins and ends with code. Otherwise empty.
    """

    text: str
    is_code: bool
    branches: Sequence[str] = ()


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
        self.text: str = _CODE.sub(self._mark, text)

    def restore(self, text: str) -> str:
        """Returns a text with the code of its marks."""
        return re.sub(MARK, lambda mark: self._code[int(mark[0][1:-1])], text)

    def _mark(self, match: re.Match[str]) -> str:
        self._code.append(match[0])
        zero = "0" * match[0].startswith("<")  # see `TAG_MARK`
        return f"{_OPEN}{zero}{len(self._code) - 1}{_CLOSE}"


def unmarked(text: str) -> str:
    """Returns the output of a model without the characters of marks."""
    return re.sub(f"[{_OPEN}{_CLOSE}]", "", text)


def placeholders(more: str = "") -> re.Pattern[str]:
    """Returns the pattern of code for `pieces`. `more` is the pattern of further code."""
    return re.compile(f"{more}|{_PLACEHOLDER}" if more else _PLACEHOLDER)


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
        yield Piece(text[match.start() : stop], True, branches)
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

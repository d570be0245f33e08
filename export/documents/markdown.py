"""Divides Markdown into units: the inline contents that markdown-it-py finds. All else stays.

A content of several lines becomes one line.
"""

import itertools
import re
from typing import Any

from keras_transformer.export.documents.sentences import missing
from keras_transformer.export.documents.units import PLACEHOLDER, Pairs, Unit, has_letters

# Characters that would be markup in a text.
_SPECIAL = re.compile(r"([\\`*_\[\]<>]|&(?=#?\w+;))")
# Where a line of text would begin a heading, a list, a rule or a block of code.
_BLOCK = re.compile(
    r"((?:^|  \n)(?:\d{1,9}(?=[.)](?:\s|$))"
    r"|(?=#{1,6}(?:\s|$)|[-+](?:[-\s]|$)|=+\s*(?:\n|$)|~~~)))"
)
_BREAK = "  \n"
_HTML_BREAK = re.compile(r"<br\b", re.IGNORECASE)
# Marks at the start of a link, and around an emphasis. No text of Markdown has U+0000.
_LINK = "\0["
_EMPHASIS, _END = "\0(", "\0)"
_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(?=\S).*?^(?:---|\.{3})[ \t]*(?:\r?\n|\Z)", re.S | re.M)
# The mark of a task, or of the definition of a footnote.
_LABEL = re.compile(r"(?:\[[ xX]\]|\[\^[^\[\]\s]{1,99}\]:)\s+")
_EMPTY = re.compile(r"\0\((\*\*?|__?)\1\0\)")


def markdown_parts(text: str) -> list[str | Unit]:
    """Divides a Markdown document into units, its inline contents, and all between them.

    Raises:
        ImportError: markdown-it-py is not installed.
    """
    if front := _FRONT_MATTER.match(text):
        return [front[0], *markdown_parts(text[front.end() :])]
    text = text.replace("\0", "\ufffd")  # as the parser does
    starts = [0, *(end.end() for end in re.finditer(r"\r\n?|\n", text)), len(text)]
    parts: list[str | Unit] = []
    here = 0
    for block, token in itertools.pairwise(_parser().parse(text)):
        if token.type != "inline" or not token.content.strip():
            continue
        first, label = token.children[0], _LABEL.match(token.content)
        if label and first.content.startswith(label[0]):
            first.content = first.content[label.end() :]
            token.content = token.content[label.end() :]
        unit = _Content(block, token.content)
        source = unit.in_block(token.content)
        span = _place(text, source, max(here, starts[token.map[0]]), starts[token.map[1]])
        if span:
            _fill(unit, token.children)
            content = unit if has_letters(unit.text) else text[slice(*span)]
            parts += [text[here : span[0]], content]
            here = span[1]
    return [*parts, text[here:]]


class _Content(Unit):
    """The inline content of a block.

    Args:
        block: token that opens the block.
        raw: str, the content in Markdown.
    """

    PLACEHOLDER = re.compile(PLACEHOLDER.pattern + r"|\[\^[^\[\]\s]{1,99}\]")  # and footnotes

    def __init__(self, block: Any, raw: str):
        super().__init__(_escape, raw)
        self._is_cell = block.type in ("th_open", "td_open")
        self._is_heading = block.markup.startswith("#")

    def in_block(self, text: str) -> str:
        """Returns an inline content as its block has it."""
        return text.replace("|", "\\|") if self._is_cell else text

    def render(self, translation: str, pairs: Pairs) -> str:
        """Returns the translation with its markup."""
        text = re.sub(f" *{_BREAK} *", _BREAK, super().render(translation, pairs))
        text = text.removeprefix(_BREAK).removesuffix(_BREAK)  # it would be a blank line
        text = text.replace(f"!{_LINK}", "\\![").replace(_LINK, "[")  # no image
        while _EMPTY.search(text):  # an emphasis without content would be text
            text = _EMPTY.sub("", text)
        text = text.replace(_EMPHASIS, "").replace(_END, "")
        if self._is_heading:
            return re.sub(r"\s(?=#+$)", r"\g<0>\\", text)  # would end the heading
        return self.in_block(text) if self._is_cell else _BLOCK.sub(r"\1\\", text)


def _place(text: str, content: str, start: int, stop: int) -> tuple[int, int] | None:
    """Returns the span of an inline content in the document; `None` if the document differs."""
    first = None
    for line in content.split("\n"):
        line = line.strip(" \t")  # the parser writes a tab as spaces
        place = text.find(line, start, stop)
        if place < 0:
            return None
        first = place if first is None else first
        start = place + len(line)
    return first, start


def _fill(unit: Unit, tokens: list[Any]) -> None:
    """Adds inline tokens to a unit, and closes it."""
    closings: list[str] = []
    automatic = None  # address of the link that has its address as text
    for token in tokens:
        kind, markup = token.type, token.markup
        if kind == "link_open" and markup == "autolink":
            automatic = token.attrs["href"]
        elif kind == "link_close" and markup == "autolink":
            automatic = None
        elif automatic is not None:  # an address with a space would be no link
            unit.add_opaque(f"<{automatic if ' ' in token.content else token.content}>")
        elif kind == "text":
            unit.add_text(token.content)
        elif kind == "softbreak":
            unit.add_text(" ")
        elif kind == "hardbreak" or (kind == "html_inline" and _HTML_BREAK.match(token.content)):
            unit.add_text(" ")
            unit.add_opaque(token.content or _BREAK)
            unit.add_text(" ")
        elif kind == "image":
            unit.add_opaque(f"![{token.content}]({_target(token.attrs, 'src')})")
        elif kind == "code_inline":
            padding = " " * ("`" in token.content[:1] + token.content[-1:])
            unit.add_opaque(f"{markup}{padding}{token.content}{padding}{markup}")
        elif kind == "link_open":
            closings.append(f"]({_target(token.attrs, 'href')})")
            unit.open(_LINK)
        elif kind == "link_close":
            unit.close_element(closings.pop())
        elif token.nesting == 1:
            unit.open(_EMPHASIS + markup)
        elif token.nesting == -1:
            unit.close_element(markup + _END)
        else:
            unit.add_opaque(token.content)
    unit.close()


def _target(attrs: dict[str, str], name: str) -> str:
    address = attrs[name]
    if not address or re.search(r"[()]", address):
        address = f"<{address}>"
    title = re.sub(r'(["\\])', r"\\\1", attrs.get("title", ""))
    return f'{address} "{title}"' if title else address


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _parser() -> Any:
    try:
        from markdown_it import MarkdownIt
    except ImportError as error:
        raise missing("markdown-it-py", error) from error
    return MarkdownIt("commonmark").enable("table")

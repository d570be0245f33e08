"""Divides Markdown into units: the inline contents that markdown-it-py finds. All else stays.

A content of several lines becomes one line.
"""

import re
from typing import Any

from keras_transformer.export.documents.sentences import missing
from keras_transformer.export.documents.units import Unit, has_letters

# Characters that would be markup in a text.
_SPECIAL = re.compile(r"([\\`*_\[\]<>]|&(?=#?\w+;))")


def markdown_parts(text: str) -> list[str | Unit]:
    """Divides a Markdown document into units, its inline contents, and all between them.

    Raises:
        ImportError: markdown-it-py is not installed.
    """
    starts = [0, *(end.end() for end in re.finditer(r"\r\n?|\n", text)), len(text)]
    parts: list[str | Unit] = []
    here = 0
    for token in _parser().parse(text):
        if token.type != "inline" or not token.content.strip():
            continue
        span = _place(text, token, max(here, starts[token.map[0]]), starts[token.map[1]])
        if span:
            unit = _unit(token.children)
            content = unit if has_letters(unit.text) else text[slice(*span)]
            parts += [text[here : span[0]], content]
            here = span[1]
    return [*parts, text[here:]]


def _place(text: str, token: Any, start: int, stop: int) -> tuple[int, int] | None:
    """Returns the span of an inline content in the document; `None` if the document differs."""
    first = None
    for line in token.content.split("\n"):
        place = text.find(line, start, stop)
        if place < 0:
            return None
        first = place if first is None else first
        start = place + len(line)
    return first, start


def _unit(tokens: list[Any]) -> Unit:
    unit = Unit(_escape)
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
        elif kind == "hardbreak":
            unit.add_opaque("  \n")
        elif kind == "image":
            unit.add_opaque(f"![{token.content}]({_target(token.attrs, 'src')})")
        elif kind == "code_inline":
            padding = " " * ("`" in token.content[:1] + token.content[-1:])
            unit.add_opaque(f"{markup}{padding}{token.content}{padding}{markup}")
        elif kind == "link_open":
            closings.append(f"]({_target(token.attrs, 'href')})")
            unit.open("[")
        elif kind == "link_close":
            unit.close_element(closings.pop())
        elif token.nesting == 1:
            unit.open(markup)
        elif token.nesting == -1:
            unit.close_element(markup)
        else:
            unit.add_opaque(token.content)
    unit.close()
    return unit


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

"""Divides Markdown into units: the inline contents that markdown-it-py finds. All else stays.

The dialects are GitHub's (tables, alerts, footnotes, tasks, formulas) and the ones of well-known
site generators: definition lists, admonitions, containers, attributes, links of a wiki. A content
of several lines becomes one line, but a line of marks stays one.
"""

import collections
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keras_transformer.export.documents.code_kinds import MARK
from keras_transformer.export.documents.guard import TAG_MARK, placeholders
from keras_transformer.export.documents.html import (
    EMPTY,
    KEPT,
    Piece,
    Token,
    fill,
    html_parts,
    html_tag,
)
from keras_transformer.export.documents.sentences import missing
from keras_transformer.export.documents.units import Translated, Unit, words

# Characters that would be markup in a text.
_SPECIAL = re.compile(r"([\\`*_\[\]<>]|&(?=#?\w+;))")
# Where a line of text would begin a heading, a list, a rule or a block of code.
_BLOCK = re.compile(
    r"((?:^|  \n)(?:\d{1,9}(?=[.)](?:\s|$))"
    r"|(?=#{1,6}(?:\s|$)|[-+](?:[-\s]|$)|=+\s*(?:\n|$)|~~~)))"
)
_BREAK = "  \n"
_COMMENTS = re.compile(r"(?:\s*<!--[\s\S]*?-->)*")
# A line of a tag, and a tag with attributes of Vue, Angular and the like.
_TAG_LINE = re.compile(r"[ \t]*</?[a-zA-Z][^<>\n]*>[ \t]*\n")
_COMPONENT_LINE = re.compile(r"\s*(?:</?[A-Z][^<>]*>\s*)+")
_ODD_TAG = re.compile(
    r"<[a-zA-Z][\w.-]*(?:\s+[^\s<>\"'=]+(?:\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s<>\"'=`]+))?)+\s*/?>"
)
_HTML_BREAK = re.compile(r"<br\b", re.IGNORECASE)
# Marks at the start of a link, and around an emphasis. No text of Markdown has U+0000.
_LINK = "\0["
_EMPHASIS, _END = "\0(", "\0)"
# A mark before the text of a block: a task, a callout with a title, an abbreviation, a field.
_LABEL = re.compile(
    r"(?:\[(?:[ xX]|[^\w\s\[\]])\]|\[![\w|-]{1,99}\][+-]?|\*\[[^\[\]]{1,99}\]:|[\w-]{1,99}::"
    r"|\||[?!x]>)[ \t]+"
)
# A tab of a page, whose content is indented as the content of an admonition.
_TAB = re.compile(r"^([ \t]*)===(?=[!+]? +\")", re.M)
# A block of scripts, up to a blank line.
_SCRIPT = re.compile(
    r"import\s(?:[^\n]*?\bfrom\s*)?['\"]|import\s+\{[^}]*$"
    r"|export\s+(?:default|const|let|var|async|function|class|\{|\*)"
)
# An option of a directive.
_OPTION = re.compile(r"\s*:[\w-]+:(?:\s.*)?")
# A line of marks alone: templates, alerts, tables of contents, includes, attributes, components and
# their slots, targets, comments and fields.
_MARK_LINE = re.compile(
    rf"\s*(?:(?:{MARK}\s*)+|\[![\w|-]{{1,99}}\][+-]?|\[{{1,2}}_?TOC_?\]{{1,2}}|--8<--.*"
    r"|\{\s*[:#.%][^{}]*\}|<<<.*|@(?:import|include)\b.*|:{2,}[\w-]*(?:\{[^{}]*\})?|#[\w-]+"
    r"|\([\w-]+\)=|%\s.*|\+\+\+.*)\s*"
)
# The title of a container, such as `:::tip Read this`; directives with other arguments have none.
_TITLE = re.compile(
    r"\s*\{?(?:note|tip|info|warning|danger|caution|important|hint|attention|error|success|seealso"
    r"|details|admonition|question|example|abstract|quote|card"
    r"|grid-item-card|dropdown|tab-item)\}?(?:\s*\{[^{}]*\})?\s*\[?(?=[^\s{])(.*?)\]?\s*",
    re.I,
)
# The marks of a note and of a text with attributes.
_PAIR = re.compile(r"(\^?\[|\](?:\{[^{}\n]{1,200}\})?)")
_TAGS = {"**": "strong", "__": "strong", "~~": "s", "*": "em", "_": "em"}
_EMPHASIS_TAGS = tuple(f"<{name}>" for name in _TAGS.values())
_EMPTY = re.compile(r"\0\((\*\*?|__?)\1\0\)")


def markdown_parts(text: str) -> list[str | Unit]:
    """Divides a Markdown document into units, its inline contents, and all between them.

    Raises:
        ImportError: markdown-it-py or mdit-py-plugins is not installed.
    """
    text = text.replace("\0", "\ufffd")  # as the parser does
    starts = [0, *(end.end() for end in re.finditer(r"\r\n?|\n", text)), len(text)]
    parts: list[str | Unit] = []
    here, references = 0, {}
    tokens = _parser().parse(_TAB.sub(r"\1!!!", text), references)
    for outer, block, token in zip([None, None, *tokens], [None, *tokens], tokens, strict=False):
        if token.map:
            first, last = token.map
            lines = max(here, starts[first]), starts[max(last, first + 1)]
        if token.type == "html_block" and text[slice(*lines)] == token.content:
            comment = _COMMENTS.match(token.content).end()
            found = html_parts(token.content[comment:])
            tag = _TAG_LINE.match(token.content, comment)
            if tag and not _keeps(html_tag(tag[0].strip())):  # alone, or it would begin no block
                found = [*html_parts(tag[0]), *html_parts(token.content[tag.end() :])]
            if comment or isinstance(found[0], str):  # else another line might begin the block
                parts += [text[here : lines[0] + comment], *found]
                here = lines[1]
        elif token.type == "container_any_open":
            lines = lines[0], starts[token.map[0] + 1]
            for part, stop in _title(text, token.info, lines):
                parts += [text[here:stop], part]
                here = stop + len(part.raw)
        elif token.type == "inline" and token.content.strip():
            is_directive = outer is not None and outer.type == "container_any_open"
            for span, unit in _contents(text, block, token, lines, references, is_directive):
                parts += [text[here : span[0]], unit if unit.has_work else text[slice(*span)]]
                here = span[1]
    return [*parts, text[here:]]


def _title(text: str, info: str, lines: tuple[int, int]) -> Iterator[tuple[Unit, int]]:
    """Yields the title of a container as a unit, and its place."""
    match = _TITLE.fullmatch(info)
    place = text.rfind(match[1], *lines) if match else -1
    if place >= 0:
        unit = Unit(raw=match[1])
        unit.close(match[1])
        if unit.has_work:
            yield unit, place


def _contents(
    text: str,
    block: Any,
    token: Any,
    lines: tuple[int, int],
    references: dict[str, Any],
    is_directive: bool = False,
) -> Iterator[tuple[tuple[int, int], "_Content"]]:
    """Yields the place of each content of an inline token, and its unit."""
    here, stop = lines
    if _SCRIPT.match(token.content):
        return
    group, is_whole = (0, False), False

    def group_of(line: str) -> tuple[int, bool]:
        """Numbers the groups of lines that become one line."""
        nonlocal group, is_directive, is_whole
        is_directive = is_directive and bool(_OPTION.fullmatch(line))
        is_mark = is_directive or bool(_MARK_LINE.fullmatch(line))
        is_component = bool(_COMPONENT_LINE.fullmatch(line))
        starts = is_component or bool(_LABEL.match(line))
        group = group[0] + (starts or is_whole), is_mark
        is_whole = is_component or line.startswith("[!")
        return group

    for (_, is_mark), group_lines in itertools.groupby(token.content.split("\n"), group_of):
        content = "\n".join(group_lines)
        if label := _LABEL.match(content):
            content = content[label.end() :]
        if block.type == "admonition_title_open" and f'"{content}"' not in text[here:stop]:
            return  # the name of the kind, made by the parser
        unit = _Content(block, content, references, label is not None)
        span = _place(text, unit.in_block(content), here, stop)
        if span is None:
            return
        here = span[1]
        if not is_mark and content.strip():
            unit.raw = text[slice(*span)]
            fill(unit, _paired([*_pieces(unit.tokens, references)]))
            yield span, unit


class _Content(Unit):
    """The inline content of a block.

    Args:
        block: token that opens the block.
        raw: str, the content in Markdown.
        references: of the document, from the parser.
        has_label: bool, whether a mark of a task or the like stands before the content.
    """

    CODE = placeholders(
        r"\[\^[^\[\]\s]{1,99}\]|\[-?@[^\[\]\n]{1,200}\]|\(@[\w-]*\)"
        r"|(?<!\S)-?@\w[\w:.-]*\w \[[^\[\]\n]{1,99}\]|(?<!\S)-@\w+"
        r"|:{1,2}[\w-]{1,99}\{[^{}\n]{1,200}\}|\{\s*[:#.][^{}\n]{1,200}\}"
        r"|\{:?\s*[\w-]+=[^{}\n]{1,200}\}|\{(?:--|\+\+|==|>>)|(?:--|\+\+|==|<<)\}|\+\+[\w+-]+\+\+"
        r"|(?<!\S):[\w-]+=\S+|(?<!\S)\^[A-Za-z0-9-]+(?=\s*$)|\|\d+(?:x\d+)?(?:, ?\d+%)?$"
    )

    def __init__(self, block: Any, raw: str, references: dict[str, Any], has_label: bool = False):
        super().__init__(_escape, raw)
        self._content, self._references = raw, references
        self.tokens = _inline(raw, references)
        self._is_first = block.type == "paragraph_open" and not has_label
        self._is_cell = block.type in ("th_open", "td_open")
        self._is_heading = block.markup.startswith("#")

    def in_block(self, text: str) -> str:
        """Returns an inline content as its block has it."""
        return text.replace("|", "\\|") if self._is_cell else text

    def render(self, translated: Translated, inner: Mapping[int, str]) -> str | None:
        """Returns the translation with its markup.

        Emphasis that a letter beside its stars would end gets the tags of HTML.
        """
        rendered = super().render(translated, inner)
        if rendered is None:
            return None
        text = re.sub(f" *{_BREAK} *", _BREAK, rendered)
        text = text.removeprefix(_BREAK).removesuffix(_BREAK)  # it would be a blank line
        text = text.replace(f"!{_LINK}", "\\![").replace(_LINK, "[")  # no image
        while _EMPTY.search(text):  # an emphasis without content would be text
            text = _EMPTY.sub("", text)
        plain = self._written(text.replace(_EMPHASIS, "").replace(_END, ""))
        count = text.count(_EMPHASIS)
        if not count or _emphases(_inline(plain, self._references)) == count:
            return plain
        for markup, name in _TAGS.items():
            text = text.replace(f"{_EMPHASIS}{markup}", f"<{name}>")
            text = text.replace(f"{markup}{_END}", f"</{name}>")
        return self._written(text)

    def _written(self, text: str) -> str:
        if self._is_heading:
            return re.sub(r"\s(?=#+$)", r"\g<0>\\", text)  # would end the heading
        return self.in_block(text) if self._is_cell else _BLOCK.sub(r"\1\\", text)

    def accepts(self, rendered: str) -> bool:
        if self._is_cell:
            rendered = rendered.replace("\\|", "|")
        if self._is_first:
            blocks = [token.type for token in _parser().parse(rendered)]
            begins = TAG_MARK.match(rendered) and not TAG_MARK.match(self._content)
            if begins or blocks != ["paragraph_open", "inline", "paragraph_close"]:
                return False
        before, after = self.tokens, _inline(rendered, self._references)
        is_same = _signature(before) == _signature(after)
        return is_same and _emphases(after) <= _emphases(before)  # one without words is dropped


def _keeps(tag: Token) -> bool:
    """Returns whether a tag begins an element that is not translated."""
    return tag.kind == "start" and (tag.name in KEPT or tag.keeps)


def _inline(content: str, references: dict[str, Any]) -> list[Any]:
    """Returns the inline tokens of a content."""
    tokens = _parser().parseInline(content, dict(references))
    return tokens[0].children or []


def _emphases(tokens: Sequence[Any]) -> int:
    """Counts emphases, as marks of Markdown or as tags."""
    kinds = ("em_open", "strong_open", "s_open")
    return sum(token.type in kinds or token.content in _EMPHASIS_TAGS for token in tokens)


def _signature(tokens: Sequence[Any]) -> collections.Counter[Any]:
    """Counts what a translation must keep of inline tokens, without emphases."""
    found: collections.Counter[Any] = collections.Counter()
    for token in tokens:
        kind = token.type
        if kind == "html_inline":
            tag = html_tag(token.content)
            if tag.name not in _TAGS.values():
                found[tag.kind, tag.name] += 1
        elif kind in ("text", "softbreak", "hardbreak") or token.tag in _TAGS.values():
            continue
        elif kind == "image":
            found[kind, token.attrs["src"]] += 1
        elif kind == "footnote_ref":
            found[kind, token.meta.get("label")] += 1
        else:
            found[kind, token.content.strip(), str(token.attrs.get("href"))] += 1
    return found


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


def _pieces(tokens: Sequence[Any], references: dict[str, Any]) -> Iterator[Piece]:
    """Yields inline tokens as pieces of a unit. An element that is not translated is one piece."""
    closings: list[str] = []
    place = 0
    while place < len(tokens):
        token, end = tokens[place], place + 1
        kind, markup = token.type, token.markup
        if kind == "text":
            yield Piece("text", "", token.content)
        elif kind == "softbreak":
            yield Piece("text", "", " ")
        elif kind == "hardbreak" or (kind == "html_inline" and _HTML_BREAK.match(token.content)):
            yield Piece("text", "", " ")
            yield Piece("opaque", "", token.content or _BREAK)
            yield Piece("text", "", " ")
        elif kind == "html_inline":
            tag = html_tag(token.content)
            if _keeps(tag):
                end = _end_of_element(tokens, place, tag.name)
                yield Piece("opaque", "", _source(tokens[place:end], references))
            else:
                has_end = tag.kind in ("start", "end") and tag.name not in EMPTY
                kept = tag.kind if has_end else "opaque"
                yield Piece(kept, tag.name, token.content)
        elif kind == "link_open" and markup == "autolink":
            end = place + 3
            automatic, shown = token.attrs["href"], tokens[place + 1].content
            # an address with a space would be no link
            yield Piece("opaque", "", f"<{automatic if ' ' in shown else shown}>")
        elif kind == "link_open":
            closings.append(f"]({_target(token.attrs, 'href')})")
            yield Piece("start", "md-link", _LINK)
        elif kind == "link_close":
            yield Piece("end", "md-link", closings.pop())
        elif token.nesting == 1:
            yield Piece("start", f"md-{token.tag}", _EMPHASIS + markup)
        elif token.nesting == -1:
            yield Piece("end", f"md-{token.tag}", markup + _END)
        else:
            yield _opaque(token, references)
        place = end


def _paired(pieces: Sequence[Piece]) -> list[Piece]:
    """Returns pieces with elements for marks that enclose a text, and that the parser leaves."""
    found: list[Piece] = []
    opened: list[tuple[int, str]] = []
    for piece in pieces:
        for number, part in enumerate(_PAIR.split(piece.raw) if piece.kind == "text" else ()):
            if part:
                found.append(Piece("text", "", part))
            if number % 2 and part[-1:] == "[":
                opened.append((len(found) - 1, part))
            elif number % 2 and opened:
                place, start = opened.pop()
                if start == "^[" or part != "]":
                    found[place] = Piece("start", "md-span", start)
                    found[-1] = Piece("end", "md-span", part)
        if piece.kind != "text":
            found.append(piece)
    merged: list[Piece] = []  # a text is one piece, so that code in it is found
    for is_text, group in itertools.groupby(found, lambda piece: piece.kind == "text"):
        rows = [*group]
        merged += [Piece("text", "", "".join(row.raw for row in rows))] if is_text else rows
    return merged


def _opaque(token: Any, references: dict[str, Any]) -> Piece:
    """Returns a token without content in its sentence. The text of an image is a unit."""
    markup = token.markup
    raw = f"{markup}{token.content}{markup}"  # a formula
    if token.type == "image":
        target = f"]({_target(token.attrs, 'src')})"
        raw = f"![{token.content}{target}"
        unit = Unit(_escape, token.content)
        unit.CODE = _Content.CODE
        fill(unit, [*_pieces(token.children, references)])
        if unit.has_work and not unit.root.children:
            return Piece("opaque", "", raw, ("![", unit, target))
    elif token.type == "code_inline":
        padding = " " * ("`" in token.content[:1] + token.content[-1:])
        raw = f"{markup}{padding}{token.content}{padding}{markup}"
    elif token.type == "footnote_ref":
        raw = f"[^{token.meta['label']}]"
    return Piece("opaque", "", raw)


def _end_of_element(tokens: Sequence[Any], place: int, name: str) -> int:
    """Returns the place after the end tag of an element; after its start tag if it has none."""
    depth = 0
    for end, token in enumerate(tokens[place:], place + 1):
        tag = html_tag(token.content) if token.type == "html_inline" else None
        if tag and tag.name == name:
            depth += {"start": 1, "end": -1}.get(tag.kind, 0)
            if not depth:
                return end
    return place + 1


def _source(tokens: Sequence[Any], references: dict[str, Any]) -> str:
    """Returns tokens as Markdown."""
    opening, *rest = tokens
    unit = Unit(_escape)
    fill(unit, [*_pieces(rest[:-1], references)])
    spans = words(unit.text)
    pairs = [(number, number) for number in range(len(spans))]
    inner = {id(one): one.raw for one in unit.inner()}
    text = unit.render(Translated(unit.text, spans, spans, pairs), inner)
    for mark in (_LINK, _EMPHASIS, _END):
        text = (text or "").replace(mark, "[" if mark == _LINK else "")
    return f"{opening.content}{text}{rest[-1].content if rest else ''}"


def _target(attrs: dict[str, str], name: str) -> str:
    address = attrs[name]
    if not address or re.search(r"[()]", address):
        address = f"<{address}>"
    title = re.sub(r'(["\\])', r"\\\1", attrs.get("title", ""))
    return f'{address} "{title}"' if title else address


def _escape(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def _odd_tag(state: Any, silent: bool) -> bool:
    """Reads a tag with attributes that no HTML has, such as `@click`."""
    match = _ODD_TAG.match(state.src, state.pos)
    if match and not silent:
        state.push("html_inline", "", 0).content = match[0]
    state.pos = match.end() if match else state.pos
    return match is not None


@functools.cache
def _parser() -> Any:
    try:
        from markdown_it import MarkdownIt
        from mdit_py_plugins.admon import admon_plugin
        from mdit_py_plugins.container import container_plugin
        from mdit_py_plugins.deflist import deflist_plugin
        from mdit_py_plugins.dollarmath import dollarmath_plugin
        from mdit_py_plugins.footnote import footnote_plugin
    except ImportError as error:
        raise missing("mdit-py-plugins", error) from error
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.normalizeLink = str  # addresses stay as they are
    parser.use(footnote_plugin, inline=False, move_to_end=False, always_match_refs=True)
    parser.use(
        dollarmath_plugin,
        allow_labels=False,
        allow_space=False,
        allow_digits=False,
        allow_blank_lines=False,
        double_inline=True,
    )
    parser.inline.ruler.before("html_inline", "odd_tag", _odd_tag)
    parser.use(deflist_plugin).use(admon_plugin)
    return parser.use(container_plugin, "any", validate=lambda *_: True)

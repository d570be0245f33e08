"""Divides HTML into units between block tags, with inline elements in them.

Python's own parser gives the place of each token. So everything that is not translated, attributes
and character references included, stays byte for byte.
"""

import collections
import html
import html.parser
import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

from keras_transformer.export.documents.code_kinds import MARK
from keras_transformer.export.documents.units import SPACES, Parts, Unit

# Elements that end a sentence. All others are inside of one, unknown names included.
BLOCKS = frozenset(
    "address area article aside audio base blockquote body br button canvas caption center col "
    "colgroup datalist dd details dialog dir div dl dt embed fieldset figcaption figure footer "
    "form frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe input legend li link "
    "main map menu meta nav noscript object ol optgroup option output p param picture pre progress "
    "rp rt search section select slot source style script summary table tbody td template textarea "
    "tfoot th thead title tr track ul video".split()
)
# Elements without content inside a sentence, and elements whose content is not translated.
INLINE_EMPTY = frozenset(("img", "wbr"))
KEPT = frozenset("code kbd samp var math svg script style pre textarea template".split())
INLINE_KEPT = frozenset("code kbd samp var math svg".split())
EMPTY = frozenset("area base br col embed hr img input link meta param source track wbr".split())
# Elements without a necessary end tag, and the elements whose start ends them.
_ITEMS = "dd dt li optgroup option tbody td tfoot th thead tr"
OPTIONAL_END = {
    name: frozenset(ends.split())
    for names, ends in (
        ("dd dt", "dd dt"),
        ("li", "li"),
        ("option", "option optgroup hr"),
        ("optgroup", "optgroup hr"),
        ("rp rt", "rp rt"),
        ("tbody tfoot thead", "tbody tfoot"),
        ("tr", "tr tbody tfoot"),
        ("td th", "td th tr tbody tfoot"),
        (
            "p",
            "address article aside blockquote details dialog div dl fieldset figcaption figure "
            "footer form h1 h2 h3 h4 h5 h6 header hgroup hr main menu nav ol p pre search section "
            f"table ul {_ITEMS}",
        ),
    )
    for name in names.split()
}
# Attributes that people read, and the names of `meta` elements whose content they read.
READ = frozenset("alt title placeholder label aria-label aria-description".split())
READ_META = re.compile(
    r"""\b(?:name|property)\s*=\s*["']?(?:description|(?:og|twitter):(?:title|description))\b""",
    re.I,
)
READ_INPUT = re.compile(r"""\btype\s*=\s*["']?(?:submit|button|reset)\b""", re.I)
_ATTRIBUTE = re.compile(r"""(?<=\s)([a-zA-Z:-]+)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
# A component of a framework on a line without text, which divides texts.
_COMPONENT = re.compile(r"^[ \t]*(</?[A-Z]\w*[a-z][^<>]*>)[ \t]*$", re.M)
_NAMES = re.compile(rf"</?[a-zA-Z][^\s/<>]*|{MARK}")
# Limits of a unit with markup. A longer or deeper unit ends at each tag.
MOST_PIECES, MOST_CHARACTERS, DEEPEST = 200, 20_000, 50


class Token(NamedTuple):
    """A tag, a text or anything else, as it stands in the document.

    Attributes:
        kind: "start", "end", "empty", "text", "other" or "block".
        name: of the tag, in lower case.
        keeps: whether the start tag has `translate="no"` or the class "notranslate".
        start: int, where it starts.
    """

    kind: str
    name: str
    keeps: bool
    start: int


class _Reader(html.parser.HTMLParser):
    """Lists the tokens of a document. A text may be several.

    A tag, comment or declaration without an end is one token up to the end of the document.
    Browsers do not show it.
    """

    def __init__(self, text: str):
        super().__init__(convert_charrefs=False)
        self.tokens: list[Token] = []
        self._lines = [0]
        for line in text.split("\n"):
            self._lines.append(self._lines[-1] + len(line) + 1)
        try:
            self.feed(text.replace("&", "."))  # character references are text
        except AssertionError as error:  # from older parsers, for odd declarations
            raise ValueError(f"the HTML cannot be read: {error!s:.200}") from error
        if rest := text[self._place() :]:
            self._add("text" if rest == "<" else "block")

    def _place(self) -> int:
        line, column = self.getpos()
        return self._lines[line - 1] + column

    def _add(self, kind: str, name: str = "", keeps: bool = False) -> None:
        name = re.split(MARK, name)[0]  # code may touch the name of a tag
        self.tokens.append(Token(kind, name, keeps, self._place()))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        keeps = (found.get("translate") or "").lower() == "no"
        self._add("start", tag, keeps or "notranslate" in (found.get("class") or "").split())

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add("empty", tag)

    def handle_endtag(self, tag: str) -> None:
        self._add("end", tag)

    def handle_data(self, data: str) -> None:
        self._add("text")

    def handle_comment(self, data: str) -> None:
        self._add("other")

    def handle_decl(self, decl: str) -> None:
        self._add("block")

    handle_pi = unknown_decl = handle_comment


class Piece(NamedTuple):
    """A token with its text, or a whole element that is not translated.

    Attributes:
        kind: "text", "start", "end", "opaque" (inline, without content) or "block".
        name: of a tag.
        raw: str, as it stands in the document.
        parts: its text and its units, if they are known.
    """

    kind: str
    name: str
    raw: str
    parts: Parts = ()


def html_tag(text: str) -> Token:
    """Returns the token of one tag or comment."""
    return next(iter(_Reader(text).tokens), Token("other", "", False, 0))


class HtmlUnit(Unit):
    """A unit between two blocks."""

    def accepts(self, rendered: str) -> bool:
        names = [collections.Counter(_NAMES.findall(text)) for text in (self.raw, rendered)]
        return names[0] == names[1]


def html_parts(
    text: str, languages: tuple[str, str] | None = None, escapes: bool = True
) -> list[str | Unit]:
    """Divides an HTML document into its units, and all between them.

    Args:
        text: str.
        escapes: bool, whether the text has character references. Defaults to `True`.
        languages: codes of source and target. Attributes `lang` of the source then name the target.
            Defaults to `None`: they stay.

    Raises:
        ValueError: the parser fails, as at an odd declaration.
    """
    parts: list[str | Unit] = []
    run: list[Piece] = []
    for piece in [*_pieces(text), Piece("block", "", "")]:
        if piece.kind == "block":
            parts += [*_run_parts(run, languages, escapes), *tag_parts(piece, languages)]
            run = []
        else:
            run.append(piece)
    return parts


def subtitle_parts(text: str, escapes: bool) -> list[str | Unit]:
    """Returns the text of a subtitle as one unit; all tags are inside of it."""
    run = []
    for part in re.split(r"(</?[a-zA-Z][^<>]*>|<\d[\d:.]*>|\{\\[^{}]*\})", text):
        name = re.match(r"</?([a-zA-Z]+)", part)
        kind = "opaque" if part[:1] in "{<" and len(part) > 2 else "text"
        if name and part.endswith(">"):
            kind = "end" if part[1] == "/" else "start"
        run.append(Piece(kind, name[1] if name else "", part))
    return _run_parts(run, None, escapes)


def tag_parts(piece: Piece, languages: tuple[str, str] | None = None) -> list[str | Unit]:
    """Returns a tag with units for the attributes that people read."""
    if piece.parts:
        return [*piece.parts]
    raw, parts, end = piece.raw, [], 0
    for match in _ATTRIBUTE.finditer(raw) if piece.name else ():
        name, group = match[1].lower(), 2 if match[2] is not None else 3
        value = match[group]
        reads = (
            name in READ
            or (name == "content" and piece.name == "meta" and READ_META.search(raw))
            or (name == "value" and piece.name == "input" and READ_INPUT.search(raw))
        )
        if reads:
            unit = HtmlUnit(_escape_double if group == 2 else _escape_single, value)
            unit.close(html.unescape(value))
            if unit.has_work:
                parts += [raw[end : match.start(group)], unit]
                end = match.end(group)
        elif name in ("lang", "xml:lang") and languages:
            if re.split("[-_]", value.lower())[0] == languages[0].lower():
                parts += [raw[end : match.start(group)], languages[1]]
                end = match.end(group)
    return [*parts, raw[end:]]


def _pieces(text: str) -> Iterator[Piece]:
    """Yields the pieces of a document. An element that is not translated is one piece."""
    tokens = []
    for token in _Reader(text).tokens:  # a text is one token
        if not (tokens and token.kind == tokens[-1].kind == "text"):
            tokens.append(token)
    ends = [*(token.start for token in tokens), len(text)][1:]
    components = {match.start(1) for match in _COMPONENT.finditer(text)}
    kept = None
    for token, end in zip(tokens, ends, strict=True):
        kind, name = token.kind, token.name
        if kept:
            stop = kept.end(token, end)
            if stop is None:
                continue
            inline = kept.name in INLINE_KEPT or kept.name not in BLOCKS | KEPT
            yield Piece("opaque" if inline else "block", "", text[kept.start : stop])
            kept = None
            if stop == end:
                continue
        raw = text[token.start : end]
        if kind == "start" and (name in KEPT or token.keeps) and name not in EMPTY:
            kept = _Kept(name, token.start)
        elif kind == "text":
            yield Piece("text", "", raw)
        elif token.start in components:
            yield Piece("block", name if kind != "end" else "", raw)
        elif kind == "other" or name in INLINE_EMPTY or (kind == "empty" and name not in BLOCKS):
            yield Piece("opaque", name, raw)
        elif kind in ("start", "end") and name not in BLOCKS:
            yield Piece(kind, name, raw)
        else:
            yield Piece("block", name if kind in ("start", "empty") else "", raw)
    if kept:
        yield Piece("block", "", text[kept.start :])


class _Kept:
    """An element that is not translated.

    Args:
        name: of the element.
        start: of its tag in the document.
    """

    def __init__(self, name: str, start: int) -> None:
        self.name, self.start = name, start
        self._inside: list[str] = []  # open elements
        self._counts: collections.Counter[str] = collections.Counter()

    def end(self, token: Token, stop: int) -> int | None:
        """Returns the end of the element if it ends at or before a token that ends at `stop`.

        Some elements have no end tag: they end where `OPTIONAL_END` says, or with their parent.
        """
        if token.kind in ("start", "empty"):
            while self._inside and token.name in OPTIONAL_END.get(self._inside[-1], ()):
                self._pop()
            if not self._inside and token.name in OPTIONAL_END.get(self.name, ()):
                return token.start
            if token.kind == "start" and token.name not in EMPTY:
                self._inside.append(token.name)
                self._counts[token.name] += 1
        elif token.kind == "end" and self._counts[token.name]:
            while self._pop() != token.name:
                pass
        elif token.kind == "end" and token.name == self.name:
            return stop
        elif token.kind == "end" and self.name in OPTIONAL_END:
            return token.start
        return None

    def _pop(self) -> str:
        name = self._inside.pop()
        self._counts[name] -= 1
        return name


def _run_parts(
    run: list[Piece], languages: tuple[str, str] | None, escapes: bool
) -> list[str | Unit]:
    """Returns a unit with the white space around it; the unchanged text if it has no letters."""
    raw = "".join(piece.raw for piece in run)
    depths = itertools.accumulate({"start": 1, "end": -1}.get(piece.kind, 0) for piece in run)
    if len(run) > 1 and (
        len(run) > MOST_PIECES or len(raw) > MOST_CHARACTERS or max(depths) > DEEPEST
    ):
        texts = [
            _run_parts([piece], languages, escapes)
            if piece.kind == "text"
            else tag_parts(piece, languages)
            for piece in run
        ]
        return [part for parts in texts for part in parts]
    unit = HtmlUnit(_escape if escapes else str, raw.strip(SPACES))
    if escapes:
        run = [
            piece._replace(raw=html.unescape(piece.raw)) if piece.kind == "text" else piece
            for piece in run
        ]
    fill(unit, run, languages)
    if not unit.has_work:
        return [raw]
    before = raw[: len(raw) - len(raw.lstrip(SPACES))]
    return [before, unit, raw[len(raw.rstrip(SPACES)) :]]


def fill(unit: Unit, run: list[Piece], languages: tuple[str, str] | None = None) -> None:
    """Adds the pieces of a unit and closes it. Their text is without character references.

    A start tag without partner encloses all up to the end of the element around it; an end tag
    without partner encloses all from its start.
    """
    opened: list[str] = []
    for piece in run:
        if piece.kind == "text":
            unit.add_text(piece.raw)
        elif piece.kind == "opaque":
            unit.add_opaque(*tag_parts(piece, languages))
        elif piece.kind == "start":
            unit.open(*tag_parts(piece, languages))
            opened.append(piece.name)
        elif piece.name in opened:
            while opened.pop() != piece.name:
                unit.close_element("")
            unit.close_element(piece.raw)
        else:
            unit.close_unopened(piece.raw)
    unit.close()


def _escape(text: str) -> str:
    return html.escape(text, quote=False)


def _escape_double(text: str) -> str:
    return _escape(text).replace('"', "&quot;")


def _escape_single(text: str) -> str:
    return _escape(text).replace("'", "&#39;")

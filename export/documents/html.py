"""Divides HTML into units between block tags, with inline elements in them.

Python's own parser gives the place of each token. So everything that is not translated, attributes
and character references included, stays byte for byte.
"""

import collections
import html
import html.parser
from collections.abc import Iterator
from typing import NamedTuple

from keras_transformer.export.documents.units import SPACES, Unit, has_letters

# Elements inside a sentence. All other tags end a unit.
INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite data del dfn em font i ins label mark q s small span strike "
    "strong sub sup time tt u".split()
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
# Limits of a unit with markup. A longer unit, and a deeper element, ends at each tag.
MOST_PIECES, MOST_CHARACTERS, DEEPEST = 200, 20_000, 50


class Token(NamedTuple):
    """A tag, a text or anything else, as it stands in the document.

    Attributes:
        kind: "start", "end", "empty", "text", "other" or "block".
        name: of the tag, in lower case.
        keeps: whether the start tag has `translate="no"`.
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
        self.tokens.append(Token(kind, name, keeps, self._place()))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        wanted = dict(attrs).get("translate")
        self._add("start", tag, wanted is not None and wanted.lower() == "no")

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

    def handle_pi(self, data: str) -> None:
        self._add("other")

    def unknown_decl(self, data: str) -> None:
        self._add("other")


class Piece(NamedTuple):
    """A token with its text, or a whole element that is not translated.

    Attributes:
        kind: "text", "start", "end", "opaque" (inline, without content) or "block".
        name: of an inline tag.
        raw: str, as it stands in the document.
    """

    kind: str
    name: str
    raw: str


def html_parts(text: str) -> list[str | Unit]:
    """Divides an HTML document into its units, and all between them.

    Raises:
        ValueError: the parser fails, as at an odd declaration.
    """
    pieces = list(_pieces(text))
    _break_unmatched(pieces)
    parts: list[str | Unit] = []
    run: list[Piece] = []
    for piece in [*pieces, Piece("block", "", "")]:
        if piece.kind == "block":
            parts += [*_run_parts(run), piece.raw]
            run = []
        else:
            run.append(piece)
    return parts


def _pieces(text: str) -> Iterator[Piece]:
    """Yields the pieces of a document. An element that is not translated is one piece."""
    tokens = []
    for token in _Reader(text).tokens:  # a text is one token
        if not (tokens and token.kind == tokens[-1].kind == "text"):
            tokens.append(token)
    ends = [*(token.start for token in tokens), len(text)][1:]
    kept = None
    for token, end in zip(tokens, ends, strict=True):
        kind, name = token.kind, token.name
        if kept:
            stop = kept.end(token, end)
            if stop is None:
                continue
            inline = kept.name in INLINE_KEPT or kept.name in INLINE
            yield Piece("opaque" if inline else "block", "", text[kept.start : stop])
            kept = None
            if stop == end:
                continue
        raw = text[token.start : end]
        if kind == "start" and (name in KEPT or token.keeps) and name not in EMPTY:
            kept = _Kept(name, token.start)
        elif kind == "text":
            yield Piece("text", "", raw)
        elif kind == "other" or name in INLINE_EMPTY or (kind == "empty" and name in INLINE):
            yield Piece("opaque", "", raw)
        elif kind in ("start", "end") and name in INLINE:
            yield Piece(kind, name, raw)
        else:
            yield Piece("block", "", raw)
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


def _break_unmatched(pieces: list[Piece]) -> None:
    """Turns inline tags that have no partner in their unit into blocks.

    A new block may divide other elements, so this repeats until nothing changes.
    """
    while unmatched := _unmatched(pieces):
        for place in unmatched:
            pieces[place] = Piece("block", "", pieces[place].raw)


def _unmatched(pieces: list[Piece]) -> list[int]:
    """Returns the places of inline tags without partner between the same blocks."""
    open_tags: list[int] = []
    names: collections.Counter[str] = collections.Counter()
    unmatched: list[int] = []

    def pop() -> int:
        place = open_tags.pop()
        names[pieces[place].name] -= 1
        return place

    for place, piece in enumerate(pieces):
        if piece.kind == "block":
            while open_tags:
                unmatched.append(pop())
        elif piece.kind == "start" and len(open_tags) == DEEPEST:
            unmatched.append(place)
        elif piece.kind == "start":
            open_tags.append(place)
            names[piece.name] += 1
        elif piece.kind == "end" and not names[piece.name]:
            unmatched.append(place)
        elif piece.kind == "end":
            while pieces[open_tags[-1]].name != piece.name:
                unmatched.append(pop())
            pop()
    return unmatched + open_tags


def _run_parts(run: list[Piece]) -> list[str | Unit]:
    """Returns a unit with the white space around it; the unchanged text if it has no letters."""
    raw = "".join(piece.raw for piece in run)
    if len(run) > 1 and (len(run) > MOST_PIECES or len(raw) > MOST_CHARACTERS):
        texts = [_run_parts([p]) if p.kind == "text" else [p.raw] for p in run]
        return [part for parts in texts for part in parts]
    unit = Unit(_escape, "\n".join(piece.raw for piece in run if piece.kind == "text"))
    for piece in run:
        if piece.kind == "text":
            unit.add_text(html.unescape(piece.raw))
        elif piece.kind == "opaque":
            unit.add_opaque(piece.raw)
        elif piece.kind == "start":
            unit.open(piece.raw)
        else:
            unit.close_element(piece.raw)
    unit.close()
    if not has_letters(unit.text):
        return [raw]
    before = raw[: len(raw) - len(raw.lstrip(SPACES))]
    return [before, unit, raw[len(raw.rstrip(SPACES)) :]]


def _escape(text: str) -> str:
    return html.escape(text, quote=False)

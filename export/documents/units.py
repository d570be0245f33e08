"""A unit of translation: a text without its markup, and the places of the markup.

Words are separated by white space. The markup of a unit is a tree: an element encloses a part of
the text; an element without content, such as a picture or a placeholder, stands between two
characters. The word alignment determines which words of the translation an element encloses.

For any translation and alignment, each element appears once and well nested: an element gets one
range of words, ranges of neighbours do not overlap, and a child stays inside its parent.
"""

import bisect
import collections
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from keras_transformer.export.documents.code_kinds import UNNUMBERED
from keras_transformer.export.documents.guard import Piece, pieces, placeholders
from keras_transformer.text.words import has_no_spaces

Span: TypeAlias = tuple[int, int]
# Text that stays, and units inside of it.
Parts: TypeAlias = "Sequence[str | Unit]"

SPACES = " \t\n\r\f"


class Translated(NamedTuple):
    """A translation of a unit's text.

    Attributes:
        text: str.
        source_words, words: spans of the words of the unit's text, and of `text`. A word of a
            script without spaces may be any part of a text.
        pairs: pairs of a number of a word of the source and of a word of `text`.
    """

    text: str
    source_words: Sequence[Span]
    words: Sequence[Span]
    pairs: Sequence[tuple[int, int]]


@dataclasses.dataclass
class Element:
    """A piece of markup.

    Attributes:
        opening: parts, written before the content.
        closing: str, written after the content.
        start, stop: int, the part of the unit's text that it encloses. Equal if it has no content.
        space_before, space_after: bool, whether white space surrounds an element without content.
        is_prefix: bool, whether such an element touches the word after it, and none before it.
        children: list of `Element`, inside this one, in order.
    """

    opening: Parts = ()
    closing: str = ""
    start: int = 0
    stop: int = 0
    space_before: bool = False
    space_after: bool = False
    is_prefix: bool = False
    children: "list[Element]" = dataclasses.field(default_factory=list)


def has_letters(text: str) -> bool:
    """Returns whether a text has anything to translate."""
    return any(character.isalpha() for character in text)


def words(text: str) -> list[Span]:
    """Returns the start and end of each word, between white space."""
    return [match.span() for match in re.finditer(r"\S+", text)]


class Unit:
    """A text and its markup. Add its parts in order, then call `close`.

    Args:
        escape: function that writes text in the document's format. Defaults to the identity.
        raw: str, the unit as the document has it. Code in it is not escaped, and it stays if the
            proof of a translation fails. Defaults to "".

    Attributes:
        text: str, the text to translate, without markup. Runs of white space become one space.
        raw: str.
        CODE: pattern of the code in a text, from `guard.placeholders`. Formats may extend it.
    """

    CODE = placeholders()

    def __init__(self, escape: Callable[[str], str] = str, raw: str = ""):
        self.text: str = ""
        self.raw = raw
        self._escape = escape
        self._known = {code for piece in pieces(raw, self.CODE) for code in _codes(piece)}
        self._open = [Element()]
        # Code whose order counts: conversions of printf, braces, and the code of blocks.
        self._ordered: tuple[list[Element], ...] = ([], [], [])
        # Elements without content at the end of the text, with no white space between them.
        self._run: list[Element] = []

    def add_text(self, text: str) -> None:
        """Adds text, in which code becomes elements without content."""
        for piece in pieces(text, self.CODE):
            if not piece.is_code:
                self._add_plain(piece.text)
            elif piece.branches:
                self.add_opaque(*self._choice(piece.branches))
            else:
                self.add_opaque(self._code(piece.text))
                if piece.is_ordered:
                    self._ordered[2].append(self._run[-1])
                elif piece.text != "%%" and UNNUMBERED.fullmatch(piece.text):
                    self._ordered[piece.text[0] == "{"].append(self._run[-1])

    def add_opaque(self, *markup: "str | Unit") -> None:
        """Adds an element without content."""
        position, has_space = len(self.text), self.text.endswith(" ") and not self._run
        element = Element(markup, "", position, position, space_before=has_space)
        self._open[-1].children.append(element)
        self._run.append(element)

    def open(self, *markup: "str | Unit") -> None:
        """Begins an element."""
        element = Element(markup, "", len(self.text))
        self._open[-1].children.append(element)
        self._open.append(element)

    def close_unopened(self, markup: str) -> None:
        """Ends an element that has no opening markup. It encloses all of the innermost element."""
        parent = self._open[-1]
        element = Element((), markup, parent.start, len(self.text), children=parent.children)
        parent.children = [element]

    def close_element(self, markup: str) -> None:
        """Ends the innermost element."""
        element = self._open.pop()
        element.closing, element.stop = markup, len(self.text)
        if element.start == element.stop:
            if element.children:  # white space stays outside of an element without text
                first = element.children[0]
                element.space_before, first.space_before = first.space_before, False
            elif not self._run:
                element.space_before = self.text.endswith(" ")
            self._run.append(element)

    def close(self, text: str = "") -> None:
        """Adds a last text, and ends the unit and its elements. No white space stays at its end."""
        self.add_text(text)
        while len(self._open) > 1:
            self.close_element("")
        self.text = self.text.rstrip(SPACES)
        self.root.stop = len(self.text)

    @property
    def has_work(self) -> bool:
        """Whether the unit or its markup has anything to translate."""
        return has_letters(self.text) or any(self.inner())

    def inner(self) -> "Iterator[Unit]":
        """Yields the units inside the markup, in order."""
        waiting = [self.root]
        while waiting:
            element = waiting.pop(0)
            waiting += element.children
            for part in element.opening:
                if isinstance(part, Unit):
                    yield from part.inner()
                    yield part

    def accepts(self, rendered: str) -> bool:
        """Returns whether a rendered translation has the markup of the unit; formats prove it."""
        return True

    @property
    def root(self) -> Element:
        """The element of the whole text."""
        return self._open[0]

    def render(self, translated: Translated, inner: "Mapping[int, str]") -> str | None:
        """Returns the translation with its markup; `None` if code would change its order.

        Args:
            translated: translation of `text`.
            inner: {id of a unit inside the markup: its translation}.
        """
        target = _Target(self.text, translated, self.root)
        target.place(self.root.children, 0, len(target.words))
        for element in self._ordered[2]:  # a block around all of the text stays around it
            if element.start in (0, len(self.text)):
                place = len(translated.text) if element.start else 0
                target.spans[id(element)] = place, place
        for elements in self._ordered:
            places = [target.spans[id(element)] for element in elements]
            if places != sorted(places):
                return None
        text = translated.text
        return self._render(self.root, text, (0, len(text)), target.spans, inner)

    def _render(
        self,
        element: Element,
        text: str,
        span: Span,
        spans: Mapping[int, Span],
        inner: "Mapping[int, str]",
    ) -> str:
        here, stop = span
        parts = []
        order = sorted(element.children, key=lambda child: spans[id(child)])
        for child in order:
            first, last = spans[id(child)]
            first = min(max(first, here), stop)
            last = min(max(last, first), stop)
            parts.append(self._escape(text[here:first]))
            written = next((part for part in reversed(parts) if part), "")
            has_space = not first or text[first - 1].isspace() or written == " "
            if child.space_before and not has_space:
                parts.append(" ")
            parts += [one if isinstance(one, str) else inner[id(one)] for one in child.opening]
            parts += [self._render(child, text, (first, last), spans, inner), child.closing]
            is_end = first >= len(text)
            follows = child is not order[-1] if is_end else not text[first].isspace()
            if child.space_after and follows:
                parts.append(" ")
            here = last
        return "".join([*parts, self._escape(text[here:stop])])

    def _code(self, code: str) -> str:
        return code if code in self._known else self._escape(code)

    def _choice(self, branches: Sequence[str]) -> "list[str | Unit]":
        """Returns the code and the inner units of a plural or a choice."""
        parts: list[str | Unit] = []
        for number, part in enumerate(branches):
            if number % 2 == 0:
                parts.append(self._code(part))
                continue
            unit = Unit(self._escape, part)
            unit._known |= self._known
            for text in re.split("(#)", part):
                unit.add_opaque(text) if text == "#" else unit.add_text(text)
            unit.close()
            before, after = part[: len(part) - len(part.lstrip())], part[len(part.rstrip()) :]
            parts += [before, unit, after] if unit.has_work else [self._code(part)]
        return parts

    def _is_alone(self, last: Element) -> bool:
        """Returns whether no other element starts or ends at the last one of the run."""
        here = self._open[-1]
        before = here.children[-2:-1]
        is_first = here.start < last.start and all(one.stop < last.start for one in before)
        return here.children[-1:] == [last] and is_first

    def _add_plain(self, text: str) -> None:
        text = re.sub(f"[{SPACES}]+", " ", text)
        if text and self._run:
            last = self._run[-1]
            last.space_after = text.startswith(" ")
            is_prefix = any(one.space_before for one in self._run) and not last.space_after
            for element in self._run:
                element.is_prefix = is_prefix
            if is_prefix and not text[0].isalnum() and not last.children and self._is_alone(last):
                # "see {url}." becomes "see.", not "see ."
                self.text = self.text.removesuffix(" ")
                last.start = last.stop = len(self.text)
        if text:
            self._run = []
        self.text += text.lstrip(" ") if self.text[-1:] in ("", " ") else text


class _Target:
    """Finds the place of each element in a translation.

    Attributes:
        words: the spans of the translation's words.
        spans: {id of an element: its characters of the translation}.
    """

    def __init__(self, source: str, translated: Translated, root: Element):
        if root.children:
            translated = _divided(source, translated, _edges(root))
        self._source, self._text = source, translated.text
        self._source_words, self.words = translated.source_words, translated.words
        self._starts = [start for start, _ in self._source_words]
        self.spans: dict[int, Span] = {}
        self._aligned: list[list[int]] = [[] for _ in self.words]
        self._first: dict[int, int] = {}  # word of the source -> first word of the translation
        self._last: dict[int, int] = {}
        for one, two in sorted(translated.pairs, key=lambda pair: pair[1]):
            if one < len(self._source_words) and two < len(self.words):
                self._aligned[two].append(one)
                self._first.setdefault(one, two)
                self._last[one] = two

    def place(self, children: Sequence[Element], first: int, last: int) -> None:
        """Gives each child its place in the words `first` to `last` of the translation."""
        filled = [child for child in children if child.stop > child.start]
        owners = [self._owner(filled, word) for word in range(first, last)]
        places: dict[int | None, list[int]] = collections.defaultdict(list)
        for number, owner in enumerate(owners):
            places[owner].append(number)
        runs: dict[int, Span] = {}
        free = [True] * len(owners)
        for child in sorted(filled, key=lambda child: -len(places[id(child)])):
            if not places[id(child)]:
                continue
            start, stop = places[id(child)][0], places[id(child)][-1] + 1  # a run is between them
            own = [owner == id(child) for owner in owners[start:stop]]
            best = _best_run(own, free[start:stop])
            if best is not None:
                begin, end = start + best[0], start + best[1]
                free[begin:end] = [False] * (end - begin)
                runs[id(child)] = first + begin, first + end
            else:  # all of its words are inside of other runs
                begin, end = _best_run(own, [True] * len(own))
                self._divide(child, (first + start + begin, first + start + end), runs)
        for child in children:
            if id(child) not in runs and not self._place_in_copy(child, first, last):
                self._borrow(child, filled, (first, last), runs)
        for child in children:
            if id(child) in runs:
                begin, end = runs[id(child)]
                self.spans[id(child)] = self._characters(child, begin, end)
                self.place(child.children, begin, end)
            elif id(child) not in self.spans:
                position = self._position(child, first, last)
                self.spans[id(child)] = position, position
                self.place(child.children, first, first)

    def _place_in_copy(self, child: Element, first: int, last: int) -> bool:
        """Places a child in a word that ends or begins as its source. Returns whether it does."""
        source = bisect.bisect_right(self._starts, child.start) - 1
        word = self._first.get(source, last)
        if not (first <= word < last and self._aligned[word] == [source]):
            return False
        start, stop = self._source_words[source]
        begin, end = self.words[word]
        if self._text.endswith(self._source[child.start : stop], begin, end):
            shift = end - stop
        elif self._text.startswith(self._source[start : child.stop], begin, end):
            shift = begin - start
        else:
            return False
        if not child.start < child.stop <= stop:
            return False
        self.spans[id(child)] = child.start + shift, child.stop + shift
        self.place(child.children, word, word + 1)
        return True

    def _divide(self, child: Element, span: Span, runs: dict[int, Span]) -> None:
        """Gives a child its words in the run of another one, which keeps the longer rest."""
        for key, (begin, end) in runs.items():
            if begin < span[1] and span[0] < end:
                rest = max((begin, span[0]), (span[1], end), key=lambda pair: pair[1] - pair[0])
                if rest[0] >= rest[1]:
                    return
                runs[key] = rest
                runs[id(child)] = max(span[0], begin), min(span[1], end)
                return

    def _borrow(
        self, child: Element, neighbours: Sequence[Element], span: Span, runs: dict[int, Span]
    ) -> None:
        """Gives a child whose words have no own translation the nearest word that nobody needs.

        That is a word outside of its neighbours, or the first or last of their several words.
        """
        if not any(self._aligned) or not has_letters(self._source[child.start : child.stop]):
            return
        holder = {word: key for key, run in runs.items() for word in range(*run)}
        starts = {id(one): one.start for one in neighbours}

        def is_free(word: int) -> bool:
            if word not in holder:
                return True
            begin, end = runs[holder[word]]
            edge = begin if child.start < starts[holder[word]] else end - 1
            return end - begin > 1 and word == edge

        def distance(word: int) -> tuple[bool, float]:
            spans = [self._source_words[source] for source in self._aligned[word]]
            shares = any(start < child.stop and child.start < stop for start, stop in spans)
            middle = (child.start + child.stop) / 2 / max(1, len(self._source))
            return not shares, abs(sum(self.words[word]) / 2 / len(self._text) - middle)

        words = [word for word in range(*span) if is_free(word)]
        if not words:
            return
        word = min(words, key=distance)
        if word in holder:
            begin, end = runs[holder[word]]
            runs[holder[word]] = (begin + 1, end) if word == begin else (begin, end - 1)
        runs[id(child)] = word, word + 1

    def _owner(self, children: Sequence[Element], word: int) -> int | None:
        """Returns the `id` of the child that encloses most of the source of a translated word."""
        overlap: collections.Counter[int] = collections.Counter()
        for source in self._aligned[word]:
            start, stop = self._source_words[source]
            place = bisect.bisect_right(children, start, key=lambda child: child.stop)
            while place < len(children) and children[place].start < stop:
                child = children[place]
                overlap[id(child)] += min(stop, child.stop) - max(start, child.start)
                place += 1
        return max(overlap, key=overlap.__getitem__) if overlap else None

    def _characters(self, child: Element, begin: int, end: int) -> Span:
        """Returns the characters of the words `begin` to `end` that a child encloses."""
        start, stop = self.words[begin][0], self.words[end - 1][1]
        for source in self._aligned[begin]:
            first, last = self._source_words[source]
            prefix, rest = self._source[first : child.start], self._source[child.start : last]
            if prefix and self._text.startswith(prefix, start):
                start += len(prefix)
            elif prefix and rest and self._text.endswith(rest, start, self.words[begin][1]):
                start = self.words[begin][1] - len(rest)
        for source in self._aligned[end - 1]:
            first, last = self._source_words[source]
            suffix, rest = self._source[child.stop : last], self._source[first : child.stop]
            if suffix and self._text.endswith(suffix, start, stop):
                stop -= len(suffix)
            elif suffix and rest and self._text.startswith(rest, self.words[end - 1][0], stop):
                stop = self.words[end - 1][0] + len(rest)
        return start, max(start, stop)

    def _position(self, child: Element, first: int, last: int) -> int:
        """Returns the place of an element without content in the translation."""
        place = child.start
        source = bisect.bisect_left(self._starts, place) - 1  # the last word that starts before it
        if self._is_prefix(child, source + 1):
            word = self._first.get(source + 1, last)
            if first <= word < last:
                return self.words[word][0]
        word = self._last.get(source, last)
        if first <= word < last:
            start, stop = self._source_words[source]
            return self._within(word, self._source[start:place], self._source[place:stop])
        word = self._first.get(source + 1, last)
        if first <= word < last:
            return self.words[word][0]
        if source < 0 or not self.words:
            return self.words[first][0] if first < len(self.words) else len(self._text)
        return self.words[min(max(last, 1), len(self.words)) - 1][1]

    def _is_prefix(self, child: Element, source: int) -> bool:
        """Returns whether an element without content is a prefix of the word `source`."""
        is_start = self._starts[source : source + 1] == [child.start]
        while child.children:
            child = child.children[-1]
        return is_start and child.is_prefix

    def _within(self, word: int, prefix: str, suffix: str) -> int:
        """Returns the place in a translated word that has `prefix` before or `suffix` after it."""
        start, stop = self.words[word]
        if suffix and self._text.startswith(prefix, start, stop):
            return start + len(prefix)
        if suffix and self._text.endswith(suffix, start, stop):
            return stop - len(suffix)
        return stop


def _codes(piece: Piece) -> Sequence[str]:
    """Returns the code of a piece of a text."""
    return piece.branches[::2] or ([piece.text] if piece.is_code else [])


def _best_run(own: Sequence[bool], free: Sequence[bool]) -> Span | None:
    """Returns the run of free words with most of an element's own words and fewest others."""
    best, run, most, total = None, 0, 0, 0
    for place, (mine, is_free) in enumerate(zip(own, free, strict=True)):
        if not is_free:
            run, total = place + 1, 0
            continue
        total += 1 if mine else -1
        if total <= 0:
            run, total = place + 1, 0
        elif total > most:
            best, most = (run, place + 1), total
    return best


def _edges(element: Element) -> list[int]:
    """Returns the places in the text where the elements inside an element begin and end."""
    found, waiting = set(), [*element.children]
    while waiting:
        child = waiting.pop()
        found |= {child.start, child.stop}
        waiting += child.children
    return sorted(found)


def _divided(source: str, translated: Translated, edges: Sequence[int]) -> Translated:
    """Divides words that several elements share, and their translations.

    A source word is divided at the edges of elements, if it has several words as translation or
    letters of a script without spaces. Its words in the translation belong to its parts by their
    relative places. A word of such a script that has several source words is divided among them.
    """
    text, words = translated.text, translated.words
    links: dict[Span, list[int]] = {span: [] for span in translated.source_words}
    for one, two in sorted(set(translated.pairs)):
        if one < len(translated.source_words) and two < len(words):
            links[translated.source_words[one]].append(two)
    for span, targets in [*links.items()]:
        inside = edges[bisect.bisect_right(edges, span[0]) : bisect.bisect_left(edges, span[1])]
        parts = [*itertools.pairwise([span[0], *inside, span[1]])]
        filled = sum(any(map(str.isalnum, source[slice(*part)])) for part in parts)
        if filled < 2 or (len(targets) < 2 and not has_no_spaces(source[slice(*span)])):
            continue
        del links[span]
        for part, shared in zip(parts, _shared(parts, len(targets)), strict=True):
            links[part] = [targets[number] for number in shared]
    owners: list[list[Span]] = [[] for _ in words]
    for span in sorted(links):
        for target in links[span]:
            owners[target].append(span)
    source_words = sorted(links)
    number = {span: place for place, span in enumerate(source_words)}
    found, pairs = [], []
    for word, spans in zip(words, owners, strict=True):
        parts = _cut(text, word, spans) if len(spans) > 1 else [word]
        if len(parts) > 1:
            pairs += [(number[span], len(found) + n) for n, span in enumerate(spans)]
        else:
            pairs += [(number[span], len(found)) for span in spans]
        found += parts
    return Translated(text, source_words, found, pairs)


def _shared(parts: Sequence[Span], count: int) -> list[list[int]]:
    """Returns for each part of a word the numbers of its words in the translation."""
    begin, length = parts[0][0], parts[-1][1] - parts[0][0]
    middles = [(sum(part) / 2 - begin) / length for part in parts]
    if count < len(parts):
        return [[int(middle * count)] if count else [] for middle in middles]
    shared: list[list[int]] = [[] for _ in parts]
    ends = [end - begin for _, end in parts]
    for number in range(count):
        shared[bisect.bisect_right(ends, (number + 0.5) / count * length)].append(number)
    return shared


def _cut(text: str, word: Span, spans: Sequence[Span]) -> list[Span]:
    """Cuts a word of a script without spaces in parts as long as spans; one part if it cannot."""
    start, stop = word
    lengths = [end - begin for begin, end in spans]
    sums = [*itertools.accumulate(lengths)]
    cuts = [start + int((stop - start) * part / sums[-1] + 0.5) for part in sums[:-1]]
    cuts = [max(cut, start + number) for number, cut in enumerate(cuts, 1)]
    parts = [*itertools.pairwise([start, *cuts, stop])]
    can = all(has_no_spaces(text[cut - 1 : cut + 1]) for cut in cuts)
    return parts if can and all(begin < end for begin, end in parts) else [word]


class _PlainUnit(Unit):
    """A line of plain text. References to characters stay, for a message may be shown as HTML."""

    CODE = placeholders(r"&(?:[a-zA-Z]\w{1,30}|#\w{1,7});")


def plain_parts(text: str) -> list[str | Unit]:
    """Returns the lines of a text as units; white space around and between them stays."""
    parts: list[str | Unit] = []
    # Each alternative starts where a run of white space starts, so a long run takes linear time.
    for piece in re.split(r"(^\s+|(?<!\s)[^\S\r\n]*[\r\n]\s*|(?<!\s)[^\S\r\n]+$)", text):
        unit = _PlainUnit(raw=piece)
        unit.close(piece)
        parts.append(unit if unit.has_work else piece)
    return parts

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
import re
from collections.abc import Callable, Iterable, Sequence

Span = tuple[int, int]
Pairs = Iterable[tuple[int, int]]

# Parts of a text that a translation may not change: names in braces, conversions of printf,
# addresses.
PLACEHOLDER = re.compile(
    r"\{\{[^{}\n]{0,200}\}\}"
    r"|[$%#]?\{[^\s{}]{0,200}\}"
    r"|%(\d{1,3}\$|\(\w{1,99}\))?[-+#0]?\d{0,3}(?:\.\d{1,3})?(?:hh?|ll?|[Lqjzt])?[a-zA-Z@]"
    r"(?(1)|(?=x%|\W|$))"
    r"|(?:(?:https?|ftp)://|\bwww\.)[^\s<>\"]*[^\s<>\".,;:!?)\]}]"
    r"|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+"
)
SPACES = " \t\n\r\f"


@dataclasses.dataclass
class Element:
    """A piece of markup.

    Attributes:
        opening, closing: str, written before and after the content.
        start, stop: int, the part of the unit's text that it encloses. Equal if it has no content.
        space_before, space_after: bool, whether white space surrounds an element without content.
        is_prefix: bool, whether such an element touches the word after it, and none before it.
        children: list of `Element`, inside this one, in order.
    """

    opening: str = ""
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
    """Returns the start and end of each word."""
    return [match.span() for match in re.finditer(r"\S+", text)]


class Unit:
    """A text and its markup. Add its parts in order, then call `close`.

    Args:
        escape: function that writes text in the document's format. Defaults to the identity.
        raw: str, the texts as the document has them. Placeholders in it are not escaped. Defaults
            to "".

    Attributes:
        text: str, the text to translate, without markup. Runs of white space become one space.
        PLACEHOLDER: pattern of the parts of a text that stay. Formats may extend it.
    """

    PLACEHOLDER = PLACEHOLDER

    def __init__(self, escape: Callable[[str], str] = str, raw: str = ""):
        self.text: str = ""
        self._escape = escape
        self._raw = {match[0] for match in self.PLACEHOLDER.finditer(raw)}
        self._open = [Element()]
        # Elements without content at the end of the text, with no white space between them.
        self._run: list[Element] = []

    def add_text(self, text: str) -> None:
        """Adds text, in which placeholders become elements without content."""
        end = 0
        for match in self.PLACEHOLDER.finditer(text):
            self._add_plain(text[end : match.start()])
            self.add_opaque(match[0] if match[0] in self._raw else self._escape(match[0]))
            end = match.end()
        self._add_plain(text[end:])

    def add_opaque(self, markup: str) -> None:
        """Adds an element without content."""
        position, has_space = len(self.text), self.text.endswith(" ") and not self._run
        element = Element(markup, "", position, position, space_before=has_space)
        self._open[-1].children.append(element)
        self._run.append(element)

    def open(self, markup: str) -> None:
        """Begins an element."""
        element = Element(markup, "", len(self.text))
        self._open[-1].children.append(element)
        self._open.append(element)

    def close_element(self, markup: str) -> None:
        """Ends the innermost element."""
        element = self._open.pop()
        element.closing, element.stop = markup, len(self.text)
        if self._run and element.start == element.stop:
            if element.children:  # white space stays outside of an element without text
                first = element.children[0]
                element.space_before, first.space_before = first.space_before, False
            self._run.append(element)

    def close(self) -> None:
        """Ends the unit, and removes white space at its end."""
        self.text = self.text.rstrip(SPACES)
        self.root.stop = len(self.text)

    @property
    def root(self) -> Element:
        """The element of the whole text."""
        return self._open[0]

    def render(self, translation: str, pairs: Pairs) -> str:
        """Returns the translation with its markup.

        Args:
            translation: str, translation of `text`.
            pairs: pairs of a word of `text` and a word of the translation, counted from 0.
        """
        target = _Target(self.text, translation, pairs)
        target.place(self.root.children, 0, len(target.words))
        return self._render(self.root, translation, 0, len(translation), target.spans)

    def _render(
        self, element: Element, text: str, start: int, stop: int, spans: dict[int, Span]
    ) -> str:
        parts, here = [], start
        order = sorted(element.children, key=lambda child: spans[id(child)])
        for child in order:
            first, last = spans[id(child)]
            first = min(max(first, here), stop)
            last = min(max(last, first), stop)
            parts.append(self._escape(text[here:first]))
            if child.space_before and text[:first] and not text[first - 1].isspace():
                parts.append(" ")
            content = self._render(child, text, first, last, spans)
            parts += [child.opening, content, child.closing]
            if child.space_after and text[first:] and not text[first].isspace():
                parts.append(" ")
            here = last
        return "".join([*parts, self._escape(text[here:stop])])

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

    def __init__(self, source: str, translation: str, pairs: Pairs):
        self._source, self._text = source, translation
        self._source_words, self.words = words(source), words(translation)
        self._starts = [start for start, _ in self._source_words]
        self.spans: dict[int, Span] = {}
        self._aligned: list[list[int]] = [[] for _ in self.words]
        self._first: dict[int, int] = {}  # word of the source -> first word of the translation
        self._last: dict[int, int] = {}
        for one, two in sorted(pairs, key=lambda pair: pair[1]):
            if one < len(self._source_words) and two < len(self.words):
                self._aligned[two].append(one)
                self._first.setdefault(one, two)
                self._last[one] = two

    def place(self, children: Sequence[Element], first: int, last: int) -> None:
        """Gives each child its place in the words `first` to `last` of the translation."""
        filled = [child for child in children if child.stop > child.start]
        owners = [self._owner(filled, word) for word in range(first, last)]
        counts = collections.Counter(owners)
        free = [True] * len(owners)
        for child in sorted(children, key=lambda child: -counts[id(child)]):
            own = counts[id(child)] and [owner == id(child) for owner in owners]
            best = _best_run(own, free) if own else None
            if best is None:
                self._place_in_word(child, first, last)
                continue
            free[best[0] : best[1]] = [False] * (best[1] - best[0])
            begin, end = first + best[0], first + best[1]
            self.spans[id(child)] = self._edges(child, begin, end)
            self.place(child.children, begin, end)

    def _place_in_word(self, child: Element, first: int, last: int) -> None:
        """Places a child without words.

        It encloses the same characters if its source word is copied, and nothing otherwise.
        """
        source = bisect.bisect_right(self._starts, child.start) - 1
        word = self._first.get(source, last)
        if first <= word < last and self._aligned[word] == [source]:
            start, stop = self._source_words[source]
            shift = self.words[word][0] - start
            is_copy = self._text[slice(*self.words[word])] == self._source[start:stop]
            if is_copy and child.start < child.stop <= stop:
                self.spans[id(child)] = child.start + shift, child.stop + shift
                self.place(child.children, word, word + 1)
                return
        position = self._position(child, first, last)
        self.spans[id(child)] = position, position
        self.place(child.children, first, first)

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

    def _edges(self, child: Element, begin: int, end: int) -> Span:
        """Returns the characters of the words `begin` to `end` that a child encloses."""
        start, stop = self.words[begin][0], self.words[end - 1][1]
        for source in self._aligned[begin]:
            prefix = self._source[self._source_words[source][0] : child.start]
            if prefix and self._text.startswith(prefix, start):
                start += len(prefix)
        for source in self._aligned[end - 1]:
            suffix = self._source[child.stop : self._source_words[source][1]]
            if suffix and self._text.endswith(suffix, start, stop):
                stop -= len(suffix)
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


def plain_parts(text: str) -> list[str | Unit]:
    """Returns the lines of a text as units; white space around and between them stays."""
    parts: list[str | Unit] = []
    # Each alternative starts where a run of white space starts, so a long run takes linear time.
    for piece in re.split(r"(^\s+|(?<!\s)[^\S\r\n]*[\r\n]\s*|(?<!\s)[^\S\r\n]+$)", text):
        unit = Unit()
        unit.add_text(piece)
        unit.close()
        parts.append(unit if has_letters(unit.text) else piece)
    return parts

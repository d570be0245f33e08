"""Translates the texts of SubRip and WebVTT. All between them stays; no text gets more lines.

Each speaker of a text, whose line begins with a dash, keeps a line.
"""

import functools
import html
import itertools
import re

from keras_transformer.export.documents.translation import DocumentTranslator
from keras_transformer.text.words import is_wide

# A line of times, and the number before it.
_CUE = re.compile(r"^(?:\d+[ \t]*\n)?[ \t]*\d[\d:.,]*[ \t]*-->.*", re.MULTILINE)
# A dash before a speaker's words.
_DASH = re.compile(r"(?m)^[ \t]*(?:<[^<>\n]*>|\{\\[^{}\n]*\})*[-\u2010-\u2015\u2022][ \t]*(?=\S)")
# Tags of both formats, and positions of SubRip.
_MARKUP = re.compile(r"</?[a-zA-Z][^<>]*>|<\d[\d:.]*>|\{\\[^{}]*\}")


def subtitles(documents: DocumentTranslator, text: str) -> str:
    """Translates a file.

    Raises:
        ValueError: a text without any line of times.
    """
    is_vtt, has_cr = text.startswith("WEBVTT"), "\r\n" in text
    text = re.sub(r"\r\n?", "\n", text)
    cues = list(_CUE.finditer(text))
    if not cues and not is_vtt and text.strip():
        raise ValueError(
            "no subtitle was found in a file that holds text: no line is like "
            "00:00:01,000 --> 00:00:02,000."
        )
    ends = [*(cue.start() for cue in cues), len(text)][1:]
    raws = [text[cue.end() : end].rstrip() for cue, end in zip(cues, ends, strict=True)]
    if is_vtt:
        raws = [raw.partition("\n\n")[0] for raw in raws]  # notes may follow a text
    turns = [_turns(raw) for raw in raws]
    read = [
        documents.read(_joined(words), "subtitle", escapes=is_vtt)
        for _, words in itertools.chain(*turns)
    ]
    translated = iter(documents.translated(read))
    parts, here = [], 0
    for cue, raw, own in zip(cues, raws, turns, strict=True):
        lines = [
            dash + "\n".join(wrapped(next(translated), words.count("\n") + 1))
            for dash, words in own
        ]
        parts += [text[here : cue.end()], "\n" + "\n".join(lines) if raw else raw]
        here = cue.end() + len(raw)
    result = "".join([*parts, text[here:]])
    return result.replace("\n", "\r\n") if has_cr else result


def _joined(text: str) -> str:
    """Returns the lines of a text as one; Chinese and Japanese lines have no space between them."""
    lines = [" ".join(line.split()) for line in text.split("\n")]
    return functools.reduce(
        lambda one, two: one + ("" if is_wide(one[-1:]) and is_wide(two[:1]) else " ") + two, lines
    )


def _turns(raw: str) -> list[tuple[str, str]]:
    """Returns the dash and the words of each speaker of a text."""
    raw = raw.strip()
    if not raw:
        return []
    places = [match.span() for match in _DASH.finditer(raw)]
    if not places or places[0][0]:
        places.insert(0, (0, re.match(r"(?:\{\\[^{}]*\})*", raw).end()))
    ends = [start for start, _ in places[1:]] + [len(raw)]
    return [
        (raw[start:begin], raw[begin:end].strip())
        for (start, begin), end in zip(places, ends, strict=True)
    ]


def wrapped(text: str, count: int) -> list[str]:
    """Wraps a text into at most `count` lines, the longest of them as short as possible.

    Lines end at spaces, and in Chinese and Japanese between any two characters. Tags have no width.
    """
    tokens = _tokens(text)
    for width in range(-(-_width(text) // count) or 1, _width(text) + 1):
        lines = _filled(tokens, width)
        if len(lines) <= count:
            return lines
    return [text]


def _tokens(text: str) -> list[str]:
    """Divides a text where a line may end; a token keeps the space after it."""
    tokens, start = [], 0
    tags = [match.span() for match in _MARKUP.finditer(text)]
    for place in range(1, len(text)):
        if any(begin < place < end for begin, end in tags):
            continue
        pair = text[place - 1 : place + 1]
        if (pair[0].isspace() and not pair[1].isspace()) or (
            is_wide(pair[0]) and pair[1].isalnum()
        ):
            tokens.append(text[start:place])
            start = place
    return [*tokens, text[start:]]


def _filled(tokens: list[str], width: int) -> list[str]:
    """Returns lines of at most `width` visible characters, if their tokens are no longer."""
    lines, line = [], ""
    for token in tokens:
        if line and _width(line + token) > width:
            lines.append(line.strip())
            line = ""
        line += token
    return [*lines, line.strip()]


def _width(text: str) -> int:
    """Returns the number of visible characters."""
    return len(html.unescape(_MARKUP.sub("", text)).strip())

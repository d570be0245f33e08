"""Segments of speech, and transcripts as text, SRT, VTT and JSON lines."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from keras_transformer.export.artefact.results import as_json


class Word(NamedTuple):
    """A word and its time.

    Attributes:
        text: str, with the space and the punctuation around it.
        start, end: float, seconds from the start of the file.
        probability: float, mean probability of its tokens.
    """

    text: str
    start: float
    end: float
    probability: float


class Segment(NamedTuple):
    """A part of a recording with its text.

    Attributes:
        start, end: float, seconds from the start of the file.
        text: str, with the space in front of it that the model writes. `"".join` joins segments.
        token_ids: tuple of int, tokens of text and times.
        average_log_probability: float, of the tokens of the window.
        no_speech_probability: float, probability that the window has no speech.
        compression_ratio: float, bytes of the window's text over its bytes after zlib. Repetition
            makes it large.
        temperature: float, 0 for a search without randomness.
        words: tuple of `Word`; empty without `word_timestamps`.
        seek: int, first frame of the window, in units of 10 ms.
    """

    start: float
    end: float
    text: str
    token_ids: tuple[int, ...]
    average_log_probability: float
    no_speech_probability: float
    compression_ratio: float
    temperature: float
    words: tuple[Word, ...] = ()
    seek: int = 0


class Transcript(NamedTuple):
    """The transcript of a sound.

    Attributes:
        language: str, its code.
        duration: float, seconds of sound.
        segments: list of `Segment`.
    """

    language: str | None
    duration: float
    segments: list[Segment]


def clock(seconds: float, separator: str = ".") -> str:
    """Returns hours, minutes, seconds and milliseconds, as in subtitles.

    >>> clock(3723.5, ",")
    '01:02:03,500'
    """
    milliseconds = round(1000 * max(seconds, 0.0))
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    whole, rest = divmod(milliseconds, 1000)
    return f"{hours:02d}:{minutes:02d}:{whole:02d}{separator}{rest:03d}"


def _text(segments: Iterable[Segment]) -> Iterator[str]:
    return (f"{_line(segment)}\n" for segment in segments)


def _srt(segments: Iterable[Segment]) -> Iterator[str]:
    for number, segment in enumerate(segments, 1):
        times = f"{clock(segment.start, ',')} --> {clock(segment.end, ',')}"
        yield f"{number}\n{times}\n{_cue(segment)}\n\n"


def _vtt(segments: Iterable[Segment]) -> Iterator[str]:
    yield "WEBVTT\n\n"
    for segment in segments:
        text = _cue(segment).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        yield f"{clock(segment.start)} --> {clock(segment.end)}\n{text}\n\n"


def _json(segments: Iterable[Segment]) -> Iterator[str]:
    for segment in segments:
        columns = {**segment._asdict(), "words": [word._asdict() for word in segment.words]}
        yield as_json(columns) + "\n"


def _line(segment: Segment) -> str:
    """Returns the text on one line."""
    return " ".join(segment.text.split())


def _cue(segment: Segment) -> str:
    """Returns the text of a subtitle, which may not hold an arrow."""
    return re.sub("-{2,}>", "->", _line(segment))


# Writers of transcripts: functions from segments to parts of the file, one for each segment.
FORMATS: Mapping[str, Callable[[Iterable[Any]], Iterator[str]]] = {
    "txt": _text,
    "srt": _srt,
    "vtt": _vtt,
    "json": _json,
}

"""Computes the times of words from the decoder's attention to the sound.

As in OpenAI's Whisper, some heads of the cross-attention follow the sound. Their weights are
normalised over the tokens, smoothed over time and averaged. Dynamic time warping then finds the
path with the largest sum that goes forward in tokens and time. It gives each token a time.

Shapes: A heads, T tokens, S frames of the encoder, 20 ms each.
"""

import string
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer.export.runtime.speech.tokens import SECONDS, SpeechTokens
from keras_transformer.export.runtime.speech.transcripts import Word
from keras_transformer.types import Array

FILTER = 7  # frames of the median filter
# Punctuation that belongs to the next word, and to the previous word.
OPENING, CLOSING = "\"'“¿([{-", "\"'.。,，!！?？:：”)]}、"
ENDS = ".。!！?？"  # of sentences
LONGEST_MEDIAN = 0.7  # seconds of a word
# Languages without spaces between words: each character is a word.
WITHOUT_SPACES = ("zh", "ja", "th", "lo", "my", "yue")
REPLACEMENT = "\ufffd"


class TimedWord(NamedTuple):
    """A word, its number of tokens, its times in seconds and its probability."""

    text: str
    count: int
    start: float
    end: float
    probability: float


def time_words(
    ids: Sequence[int],
    attention: Array,
    log_probs: Array,
    prefix: int,
    frames: int,
    tokens: SpeechTokens,
    language: str | None,
) -> tuple[list[TimedWord], float]:
    """Returns the words of a text with their times in the window, and their median duration.

    As in OpenAI's Whisper, punctuation is merged into the words after the median is computed.

    Args:
        ids: T tokens of text.
        attention: float32 (A, prefix + 1 + T + 1 or more, S): weights of the start tokens, of the
            token for no times, of the text and of the end token.
        log_probs: float32 (prefix + T or more,), log-probabilities of the tokens after the first.
        prefix: int, number of start tokens.
        frames: int, frames of the encoder that hold sound.
        tokens: `SpeechTokens`.
        language: code of the language.
    """
    if not ids:
        return [], 0.0
    weights = attention[:, : prefix + len(ids) + 2, :frames].astype(np.float64)
    weights /= weights.sum(axis=2, keepdims=True) + 1e-12
    spread = weights.std(axis=1, keepdims=True)
    weights = (weights - weights.mean(axis=1, keepdims=True)) / (spread + 1e-12)
    matrix = median_filter(weights).mean(axis=0)[prefix:-1]  # (T + 1, S)
    starts = (token_starts(matrix) * SECONDS).tolist()
    words, place = [], 0
    for text, count in split_words(ids, tokens, language):
        last = place + count
        probability = float(np.exp(log_probs[prefix + place : prefix + last]).mean())
        words.append(TimedWord(text, count, starts[place], starts[last], probability))
        place = last
    median = median_duration(words)
    return merge_punctuation(shorten_long_words(words, 2 * median)), median


def median_filter(weights: Array) -> Array:
    """Computes the median over `FILTER` frames, with reflection at both ends: (..., S)."""
    half = FILTER // 2
    if weights.shape[-1] <= half:
        return weights
    pads = [(0, 0)] * (weights.ndim - 1) + [(half, half)]
    padded = np.pad(weights, pads, mode="reflect")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, FILTER, axis=-1), axis=-1)


def token_starts(matrix: Array) -> Array:
    """Finds the first frame of each token on the best monotonic path in a matrix (T, S): (T,).

    The path has the largest sum. It begins at the first token and frame and ends at the last. Each
    step goes to the next token, to the next frame, or to both.
    """
    rows, columns = matrix.shape
    best = np.full((rows + 1, columns + 1), -np.inf)
    best[0, 0] = 0.0
    moves = np.zeros((rows, columns), np.int8)  # 0 both, 1 next token, 2 next frame
    for diagonal in range(rows + columns - 1):  # cells of a diagonal are independent
        i = np.arange(max(0, diagonal - columns + 1), min(rows, diagonal + 1))
        j = diagonal - i
        before = np.stack([best[i, j], best[i, j + 1], best[i + 1, j]])
        # As in OpenAI's code, ties go to the next frame.
        both = (before[0] > before[1]) & (before[0] > before[2])
        token = (before[1] > before[0]) & (before[1] > before[2])
        moves[i, j] = np.where(both, 0, np.where(token, 1, 2))
        best[i + 1, j + 1] = matrix[i, j] + before[moves[i, j], np.arange(len(i))]
    starts, i, j = np.zeros(rows, int), rows - 1, columns - 1
    while i >= 0 and j >= 0:
        starts[i] = j
        i, j = i - (moves[i, j] < 2), j - (moves[i, j] != 1)
    return starts


def split_words(
    ids: Sequence[int], tokens: SpeechTokens, language: str | None
) -> list[tuple[str, int]]:
    """Returns the words, with the space before them, and the number of tokens of each."""
    parts: list[tuple[str, int]] = []  # tokens that form whole characters
    whole, done, waiting = tokens.text(ids), 0, []
    for id in ids:
        waiting.append(id)
        text = tokens.text(waiting)
        place = text.find(REPLACEMENT)
        # The text itself may contain U+FFFD.
        if place < 0 or whole[done + place : done + place + 1] == REPLACEMENT:
            parts.append((text, len(waiting)))
            done, waiting = done + len(text), []
    if waiting:
        parts.append((tokens.text(waiting), len(waiting)))
    if language in WITHOUT_SPACES:
        return parts
    words: list[tuple[str, int]] = []
    for text, count in parts:
        if text.startswith(" ") or text.strip() in string.punctuation or not words:
            words.append((text, count))
        else:
            words[-1] = words[-1][0] + text, words[-1][1] + count
    return words


def median_duration(words: Sequence[TimedWord]) -> float:
    """Returns the median duration of words, at most 0.7 s; 0 if all durations are 0."""
    durations = [word.end - word.start for word in words if word.end > word.start]
    return min(LONGEST_MEDIAN, float(np.median(durations))) if durations else 0.0


def shorten_long_words(words: Sequence[TimedWord], longest: float) -> list[TimedWord]:
    """Shortens words longer than `longest` at the end of a sentence: they contain pauses."""
    words = list(words)
    for i in range(1, len(words)):
        word = words[i]
        if longest and word.end - word.start > longest:
            if word.text in ENDS:
                words[i] = word._replace(end=word.start + longest)
            elif words[i - 1].text in ENDS:
                words[i] = word._replace(start=word.end - longest)
    return words


def merge_punctuation(words: Sequence[TimedWord]) -> list[TimedWord]:
    """Joins opening punctuation to the next word and closing punctuation to the word before."""
    joined: list[TimedWord] = []
    for word in reversed(words):
        if joined and word.text.startswith(" ") and word.text.strip() in OPENING:
            joined[-1] = _join(word, joined[-1], times=joined[-1])
        else:
            joined.append(word)
    merged: list[TimedWord] = []
    for word in reversed(joined):
        if merged and not merged[-1].text.endswith(" ") and word.text in CLOSING:
            merged[-1] = _join(merged[-1], word, times=merged[-1])
        else:
            merged.append(word)
    return merged


def _join(first: TimedWord, second: TimedWord, times: TimedWord) -> TimedWord:
    """Returns two words as one, with the times of one of them."""
    return times._replace(text=first.text + second.text, count=first.count + second.count)


class TimedPart(NamedTuple):
    """A segment without scores: start and end in seconds, its tokens and its words."""

    start: float
    end: float
    token_ids: list[int]
    words: tuple[Word, ...] = ()


def place_words(
    parts: Sequence[TimedPart],
    words: Sequence[TimedWord],
    median: float,
    offset: float,
    last_end: float,
    tokens: SpeechTokens,
) -> list[TimedPart]:
    """Gives each segment its words, and moves its start and end to its first and last word.

    Args:
        parts: segments in seconds from the start of the file.
        words: all words of the segments, from `time_words`.
        median: their median duration, from `time_words`.
        offset: start of the window in seconds.
        last_end: end of the last word before the window.
        tokens: `SpeechTokens`.
    """
    waiting, placed = list(words), []
    for part in parts:
        count, taken, found = sum(map(tokens.is_text, part.token_ids)), 0, []
        while waiting and taken < count:
            word = waiting.pop(0)
            taken += word.count
            times = (round(offset + time, 2) for time in (word.start, word.end))
            found.append(Word(word.text, *times, word.probability))
        if found:
            if found[0].end - last_end > 4 * median:  # after a pause
                found = _shorten_first(found, 2 * median)
            part = _fit(part._replace(words=tuple(found)), median)
            last_end = part.end
        placed.append(part)
    return placed


def _shorten_first(words: list[Word], longest: float) -> list[Word]:
    """Shortens the first one or two words if they are implausibly long."""
    first, *rest = words
    both_too_long = rest and rest[0].end - first.start > 2 * longest
    if first.end - first.start <= longest and not both_too_long:
        return words
    if rest and rest[0].end - rest[0].start > longest:
        boundary = max(rest[0].end / 2, rest[0].end - longest)
        first, rest[0] = first._replace(end=boundary), rest[0]._replace(start=boundary)
    return [first._replace(start=max(0.0, first.end - longest)), *rest]


def _fit(part: TimedPart, median: float) -> TimedPart:
    """Takes the times of the words, unless the first or last word extends far beyond the part."""
    words = list(part.words)
    first = words[0]
    if part.start < first.end and part.start - 0.5 > first.start:
        words[0] = first._replace(start=max(0.0, min(first.end - median, part.start)))
    else:
        part = part._replace(start=first.start)
    last = words[-1]
    if part.end > last.start and part.end + 0.5 < last.end:
        words[-1] = last._replace(end=max(last.start + median, part.end))
    else:
        part = part._replace(end=last.end)
    return part._replace(words=tuple(words))

"""Times of words, against plain loops in Python.

Shapes: A heads, T tokens, S frames.
"""

import collections
import itertools
import math

import numpy as np
import pytest

from keras_transformer.export.runtime.speech.transcripts import Word
from keras_transformer.export.runtime.speech.word_times import (
    LONGEST_MEDIAN,
    TimedPart,
    TimedWord,
    median_duration,
    median_filter,
    merge_punctuation,
    place_words,
    shorten_long_words,
    split_words,
    time_words,
    token_starts,
)

ndimage = pytest.importorskip("scipy.ndimage")


class Pieces:
    """Tokens of known bytes, ids from 0; a part of a character is U+FFFD, as in Whisper."""

    def __init__(self, *pieces):
        self.pieces = [piece if isinstance(piece, bytes) else piece.encode() for piece in pieces]

    def text(self, ids):
        return b"".join(self.pieces[id] for id in ids).decode("utf-8", "replace")

    def is_text(self, id):
        return id < len(self.pieces)


def path_starts(matrix):
    """OpenAI's dynamic time warping of a matrix (T, S): the first frame of each token."""
    rows, columns = matrix.shape
    cost, trace = collections.defaultdict(lambda: math.inf, {(0, 0): 0.0}), {}
    for i, j in itertools.product(range(1, rows + 1), range(1, columns + 1)):
        both, token, frame = before = cost[i - 1, j - 1], cost[i - 1, j], cost[i, j - 1]
        move = 0 if both < min(token, frame) else 1 if token < min(both, frame) else 2
        cost[i, j], trace[i, j] = before[move] - matrix[i - 1, j - 1], move
    starts, i, j = [0] * rows, rows, columns
    while i > 0 and j > 0:
        starts[i - 1], move = j - 1, trace[i, j]
        i, j = i - (move != 2), j - (move != 1)
    return starts


def medians(weights):
    """The median over 7 frames of each row (A, T, S), reflected at both ends."""
    return ndimage.median_filter(weights, (1, 1, 7), mode="mirror")


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (2, 2), (5, 11), (7, 7), (11, 5), (6, 23)])
@pytest.mark.parametrize("numbers", [2, 3, 1000])
def test_starts_of_tokens_equal_a_plain_loop(shape, numbers):
    random = np.random.default_rng([*shape, numbers])
    for _ in range(20):  # few numbers give many ties
        matrix = random.integers(0, numbers, shape).astype(float)
        assert token_starts(matrix).tolist() == path_starts(matrix)


@pytest.mark.parametrize("frames", [4, 5, 7, 23])
def test_the_median_filter_equals_a_plain_loop(frames):
    weights = np.random.default_rng(frames).normal(size=(2, 3, frames))
    np.testing.assert_array_equal(median_filter(weights), medians(weights))
    np.testing.assert_array_equal(median_filter(weights[..., :3]), weights[..., :3])  # too short


@pytest.mark.parametrize("prefix", [1, 3])
def test_words_equal_plain_loops(prefix):
    """Each token begins a word, and half of the probabilities belong to start tokens."""
    random = np.random.default_rng(prefix)
    tokens, frames = Pieces(" a", " b", " c", " d"), 40
    attention = random.uniform(0, 0.1, (2, prefix + 7, frames + 5)).astype("float32")
    for token in range(5):
        attention[:, prefix + token, 8 * token : 8 * token + 8] += 0.5
    attention[:, :, frames:] = 9  # beyond the sound
    log_probs = random.uniform(-3, 0, prefix + 6).astype("float32")
    words, median = time_words(range(4), attention, log_probs, prefix, frames, tokens, "en")
    weights = attention[:, : prefix + 6, :frames].astype(float)
    weights = weights / weights.sum(axis=2, keepdims=True)
    weights = weights - weights.mean(axis=1, keepdims=True)
    weights = weights / weights.std(axis=1, keepdims=True)
    starts = 0.02 * np.array(path_starts(medians(weights).mean(axis=0)[prefix:-1]))
    found = [(word.start, word.end, word.probability) for word in words]
    probabilities = np.exp(log_probs[prefix : prefix + 4])
    assert [word.text for word in words] == [" a", " b", " c", " d"]
    np.testing.assert_allclose(found, np.c_[starts[:-1], starts[1:], probabilities], rtol=1e-6)
    assert median == pytest.approx(min(LONGEST_MEDIAN, np.median(np.diff(starts))))


def test_the_probability_of_a_word_is_the_mean_of_its_tokens():
    attention = np.zeros((1, 6, 30))
    attention[0, 1:6] = np.repeat(np.eye(5), 6, axis=1)
    log_probs = np.log([0.9, 0.2, 0.4, 0.5, 0.7])
    tokens = Pieces(" a", "b", " c")
    words, _ = time_words(range(3), attention, log_probs, 1, 30, tokens, "en")
    assert [(word.text, word.count) for word in words] == [(" ab", 2), (" c", 1)]
    assert [word.probability for word in words] == pytest.approx([0.3, 0.5])
    assert time_words([], attention, log_probs, 1, 30, tokens, "en") == ([], 0.0)


@pytest.mark.parametrize(
    "pieces, language, words",
    [
        ([" a", "b", " c"], "en", [(" ab", 2), (" c", 1)]),
        (["a", "b", ",", "c"], "en", [("ab", 2), (",c", 2)]),
        ([" a", b"\xc3", b"\xa9", " b"], "en", [(" a\u00e9", 3), (" b", 1)]),
        ([b" \xf0\x9f", b"\x98", b"\x80", "x"], "en", [(" \U0001f600x", 4)]),
        ([" a", "\ufffd", " b"], "en", [(" a\ufffd", 2), (" b", 1)]),
        (
            [" a\ufffd", b"\xc3", b"\xa9", "\ufffd", " b"],
            "en",
            [(" a\ufffd\u00e9\ufffd", 4), (" b", 1)],
        ),
        ([" a", b"\xc3"], "en", [(" a\ufffd", 2)]),  # an incomplete character at the end
        (["\u4e2d", b"\xe6\x96", b"\x87", "x"], "zh", [("\u4e2d", 1), ("\u6587", 2), ("x", 1)]),
        (["\u4e2d", b"\xe6\x96", b"\x87", "x"], None, [("\u4e2d\u6587x", 4)]),
        ([], "en", []),
    ],
)
def test_tokens_are_divided_into_words(pieces, language, words):
    assert split_words(range(len(pieces)), Pieces(*pieces), language) == words


def timed(text, start, end, count=1):
    return TimedWord(text, count, start, end, 0.5)


def test_the_median_duration_is_limited_and_leaves_out_empty_words():
    assert median_duration([timed(" a", 0, 0.2), timed(" b", 1, 1), timed(" c", 1, 1.6)]) == 0.4
    assert median_duration([timed(" a", 0, 5.0)]) == LONGEST_MEDIAN
    assert median_duration([timed(" a", 1, 1)]) == 0.0


def test_the_median_duration_counts_punctuation_alone():
    texts, frames = [" a", ",", " b", ",", " c", "."], [40, 6, 20, 6, 20, 6, 10]
    attention = np.zeros((1, 9, sum(frames)))
    attention[0, 1:8] = np.repeat(np.eye(7), frames, axis=1)
    tokens = Pieces(*texts)
    words, median = time_words(range(6), attention, np.zeros(9), 1, sum(frames), tokens, "en")
    assert [word.text for word in words] == [" a,", " b,", " c."]
    assert median == pytest.approx((0.12 + 0.4) / 2, abs=0.05)  # of 0.8, 0.4, 0.4 and 3 times 0.12


def test_long_words_at_ends_of_sentences_are_shortened():
    words = [timed(" a", 0, 9), timed(".", 9, 12), timed(" b", 12, 20), timed(" c", 20, 29)]
    spans = [(word.start, word.end) for word in shorten_long_words(words, 2.0)]
    assert spans == [(0, 9), (9, 11), (18, 20), (20, 29)]
    assert shorten_long_words(words, 0.0) == words


@pytest.mark.parametrize(
    "words, merged",
    [
        ([" Oh", ",", " no", "!"], [(" Oh,", 0, 1), (" no!", 2, 3)]),
        ([" (", "a", ")", " b"], [(" (a)", 1, 2), (" b", 3, 4)]),
        ([" Oh", ",", ' "', "no", "!"], [(" Oh,", 0, 1), (' "no!', 3, 4)]),
        ([" -", " a"], [(" - a", 1, 2)]),
        ([" a ", "."], [(" a ", 0, 1), (".", 1, 2)]),
        (["?"], [("?", 0, 1)]),
    ],
)
def test_punctuation_belongs_to_a_word_and_has_no_time(words, merged):
    found = merge_punctuation([timed(text, n, n + 1) for n, text in enumerate(words)])
    assert [(word.text, word.start, word.end) for word in found] == merged
    assert sum(word.count for word in found) == len(words)


def test_words_move_the_times_of_their_segment():
    tokens = Pieces("a", "b", "c")
    parts = [TimedPart(1.0, 2.0, [0, 1, 99]), TimedPart(2.0, 9.0, [2])]
    words = [timed("ab", 0.1, 0.9, 2), timed("c", 1.2, 1.5)]
    assert place_words(parts, words, 0.3, 1.0, 1.0, tokens) == [
        TimedPart(1.1, 1.9, [0, 1, 99], (Word("ab", 1.1, 1.9, 0.5),)),
        TimedPart(2.2, 2.5, [2], (Word("c", 2.2, 2.5, 0.5),)),
    ]
    assert place_words(parts, [], 0.0, 1.0, 0.9, tokens) == parts


def test_a_long_word_after_a_pause_is_shortened():
    words = [timed("a", 0.0, 9.0), *(timed("b", 9.0 + i / 5, 9.2 + i / 5) for i in range(5))]
    (part,) = place_words([TimedPart(8.8, 10.0, [0] * 6)], words, 0.2, 0.0, 0.0, Pieces("a"))
    assert part.words[0].start == pytest.approx(8.6) and part.words[0].end == 9.0

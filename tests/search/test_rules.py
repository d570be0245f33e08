"""Rules for next tokens, against NumPy.

Shapes: B batch, W hypotheses, V vocabulary, t tokens so far.
"""

import numpy as np
import pytest
import tensorflow as tf
from helpers import exports

import keras_transformer as kt
from keras_transformer.padding import pad_rows
from keras_transformer.search import Past
from keras_transformer.search.scores import Scores

B, W, V = 3, 2, 13


def changed(rule, logits, history, leading=0, count=None, **inputs):
    """Returns the logits (B, W, V) after a rule; may pad the history with leading zeros."""
    given = {name: tf.constant(value) for name, value in {**rule.inputs, **inputs}.items()}
    given = {
        name: value if value.shape.rank == 0 else tf.repeat(value, B // len(value), axis=0)
        for name, value in given.items()
    }
    known = rule.read(None, given)
    padded = np.pad(history, [(0, 0), (0, 0), (leading, 0)])
    ids = history[:, :, -1] if history.shape[2] else np.full((B, W), 2)
    count = history.shape[2] + 1 if count is None else count
    past = Past(*(tf.constant(array, tf.int32) for array in (ids, padded, count, 9 - count)))
    scores = Scores.of(logits)
    return rule.step(scores, past, rule.start(known, B, W), known)[0].values.numpy()


class InNumPy:
    """The logits of one hypothesis (V,) after a rule, for its tokens as a list."""

    @staticmethod
    def ngrams(size, logits, history):
        last = history[len(history) - size + 1 :]
        for start in range(len(history) - size + 1):
            *first, next_token = history[start : start + size]
            if first == last:
                logits[next_token] = -np.inf

    @staticmethod
    def penalty(penalty, logits, history):
        for token in {*history}:
            logits[token] *= penalty if logits[token] < 0 else 1 / penalty

    @staticmethod
    def words(words, logits, history):
        for *first, last in words:
            if first == history[len(history) - len(first) :]:
                logits[last] = -np.inf


def drawn(seed, length):
    random = np.random.default_rng(seed)
    logits = random.normal(size=(B, W, V)).astype("float32")
    return logits, random.integers(4, 9, size=(B, W, length))  # few tokens, so that they repeat


def check(found, expected):
    """Compares all but padding, which gets the probability of forbidden tokens."""
    np.testing.assert_allclose(found[..., 1:], expected[..., 1:], rtol=1e-6)
    assert np.isfinite(found[..., 0]).all()


HISTORIES = [(seed, length) for seed, length in enumerate((1, 2, 5, 67, 211))]


WORDS = [[7], [5, 6], [4, 4, 8], [6, 5, 4, 7]]


def size(number):
    return {"no_repeat_ngram_size": np.int32(number)}


@pytest.mark.parametrize("leading", [0, 3])
@pytest.mark.parametrize(
    "name, value, rules",  # rules of a constructor, or of a call, that are the same
    [
        *(
            ("ngrams", n, [(kt.NoRepeatNgrams(n), {}), (kt.NoRepeatNgrams(5), size(n))])
            for n in (1, 2, 3)
        ),
        (
            "penalty",
            1.7,
            [
                (kt.RepetitionPenalty(1.7), {}),
                (kt.RepetitionPenalty(1.1), {"repetition_penalty": np.float32(1.7)}),
            ],
        ),
        (
            "words",
            WORDS,
            [
                (kt.ForbiddenWords(WORDS), {}),
                (kt.ForbiddenWords(), {"forbidden_words": pad_rows(WORDS)[None]}),
                (kt.ForbiddenWords(WORDS[:2]), {"forbidden_words": pad_rows(WORDS[2:])[None]}),
            ],
        ),
    ],
    ids=["ngrams of 1", "ngrams of 2", "ngrams of 3", "penalized", "words"],
)
def test_rules_equal_numpy(name, value, rules, leading):
    differ = 0
    for seed, length in HISTORIES:
        logits, history = drawn(seed, length)
        expected = logits.copy()
        for place in np.ndindex(B, W):
            getattr(InNumPy, name)(value, expected[place], history[place].tolist())
        for rule, inputs in rules:
            check(changed(rule, logits, history, leading, **inputs), expected)
        differ += np.sum(expected != logits)
    assert differ > 5 * B * W or name == "ngrams" and differ > 5


@pytest.mark.parametrize("leading", [0, 3])
@pytest.mark.parametrize("length, call", [(0, {}), (0, size(1)), (67, size(0))])
def test_no_ngrams_are_forbidden_without_a_history_or_a_size(length, call, leading):
    logits, history = drawn(7, length)
    check(changed(kt.NoRepeatNgrams(3), logits, history, leading, **call), logits)


def test_words_may_differ_by_sentence_and_ids_outside_the_vocabulary_forbid_nothing():
    logits, history = drawn(1, 3)
    words = [[[7, 0], [V + 5, 0]], [[8, 0], [-1, 0]], [[4, V], [0, 0]]]
    rule = kt.ForbiddenWords([[V + 5]])
    found = changed(rule, logits, history, forbidden_words=np.array(words, np.int32))
    assert [np.flatnonzero(np.isinf(row[0])).tolist() for row in found] == [[7], [8], []]


def test_a_prefix_is_biased_until_a_hypothesis_leaves_it():
    rule, (logits, _) = kt.BiasedPrefix(0.25), drawn(1, 0)
    prefix = np.array([[5, 6, 7], [7, 0, 0], [0, 0, 0]], np.int32)
    given = {**rule.inputs, "biased_prefix": prefix}
    known = rule.read(None, {name: tf.constant(value) for name, value in given.items()})
    state, own = rule.start(known, B, W), tf.nn.softmax(logits).numpy()
    # The second hypothesis leaves the prefix. Its last token equals the prefix again.
    tokens = np.array([[[2, 5, 6], [2, 4, 6]], [[2, 7, 8], [2, 8, 7]], [[2, 4, 4]] * 2], np.int32)
    likelier = np.array([[[5, 6, 7], [5, 0, 0]], [[7, 0, 0]] * 2, [[0, 0, 0]] * 2])
    for step in range(3):
        count = tf.constant(step + 1)
        past = Past(tokens[:, :, step], tokens[:, :, 1 : step + 1], count, 4 - count)
        found, state = rule.step(Scores.of(logits), past, state, known)
        token = likelier[:, :, step, None]
        expected = np.where(token > 0, 0.75 * own + 0.25 * (np.arange(V) == token), own)
        np.testing.assert_allclose(tf.nn.softmax(found.values), expected, rtol=1e-5)


@pytest.mark.full
def test_a_prefix_and_a_minimum_for_each_sentence_trace_with_one_hypothesis():
    """The prefix's state must keep its static width there, or tracing fails."""
    search = kt.GreedySearch(constraints=[kt.BiasedPrefix(0.7)], token_scores=True)
    model = exports.tiny(num_layers=1)
    spec = tf.TensorSpec([None, None], tf.int32)
    lengths = tf.TensorSpec([None], tf.int32)
    prefix = tf.constant([[7]])

    @tf.function(input_signature=[spec, lengths])
    def run(source_ids, min_length):
        return search(model, source_ids, 5, min_length=min_length, biased_prefix=prefix)

    source = exports.source(3)
    expected = search(model, source, 5, min_length=np.full(3, 2), biased_prefix=prefix)
    np.testing.assert_array_equal(run(source, np.full(3, 2)).ids, expected.ids)

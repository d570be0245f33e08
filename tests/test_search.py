"""The searches on a small fake model, against plain NumPy searches that know nothing of theirs.

Shapes: B sentences, W hypotheses, S source length, T generated length, V vocabulary.
"""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.search import BeamSearch, GreedySearch

END = 3


class FakeModel:
    """Logits from a random table by source, whole history, last token and position.

    The history comes from the cache alone, which holds one number a fed token: a cache whose rows
    were reordered wrongly, or not at all, gives other logits. `log_probs` is the same in NumPy.
    """

    def __init__(self, vocab_size, *, end_bias=0.0, max_length=None, causal=False, seed=0):
        draw = np.random.default_rng(seed).normal
        self.vocab_size, self.max_length, self.causal = vocab_size, max_length, causal
        self.code = draw(size=vocab_size).astype("float32")
        self.table = (1.5 * draw(size=(vocab_size, vocab_size))).astype("float32")
        self.table[:, END] += end_bias
        self.mix = draw(size=(3, vocab_size)).astype("float32")

    def start_ids(self, source_ids):
        if self.causal:
            return source_ids
        return tf.fill([tf.shape(source_ids)[0], 1], 2)

    def encode(self, source_ids):
        if self.causal:
            return {}
        mask = tf.cast(source_ids != 0, tf.float32)
        return {"sum": tf.reduce_sum(mask * tf.gather(self.code, source_ids), axis=1)}

    def initial_cache(self, rows):
        return [{"key": tf.zeros([rows, 1, 0, 1])}, {"key": tf.zeros([rows, 2, 0, 3])}]

    def decode_step(self, ids, position, memory, cache):
        rows, width = tf.unstack(tf.shape(ids))
        fed = tf.reshape(tf.gather(self.code, ids), [-1, 1, 1, 1])
        cache = [
            {"key": tf.concat([cache[0]["key"], fed], axis=2)},
            {"key": tf.concat([cache[1]["key"], tf.tile(fed, [1, 2, 1, 3])], axis=2)},
        ]
        length = tf.shape(cache[0]["key"])[2]
        weight = tf.cast(tf.range(1, length + 1), tf.float32)[tf.newaxis]
        summary = tf.reduce_sum(weight * cache[0]["key"][:, 0, :, 0], axis=1)
        summary += tf.reduce_sum(cache[1]["key"], axis=[1, 2, 3]) / 6.0
        features = tf.sin(tf.reshape(summary, [rows, width, 1])) * self.mix[0]
        features += tf.cast(position, tf.float32) * 0.1 * self.mix[1]
        if not self.causal:
            features += memory["sum"][:, tf.newaxis, tf.newaxis] * self.mix[2]
        return tf.gather(self.table, ids) + features, cache

    def log_probs(self, source, fed):
        """log-probabilities (V,) of the token after `fed` (start tokens included), in NumPy."""
        code = self.code[list(fed)].astype("float64")
        summary = np.sum(np.arange(1, len(fed) + 1) * code) + np.sum(code)
        logits = self.table[fed[-1]] + np.sin(summary) * self.mix[0]
        logits = logits + (len(fed) - 1) * 0.1 * self.mix[1]
        if not self.causal:
            logits = logits + np.sum(self.code[[i for i in source if i]]) * self.mix[2]
        return logits - np.log(np.sum(np.exp(logits)))


class Reference:
    """Beam search as one would explain it: lists, no cache, no batch, one sentence."""

    def __init__(self, model, source, limit, *, start=(2,), prefix=(), min_length=0, unknown=True):
        self.model, self.source, self.limit = model, source, limit
        self.start, self.prefix, self.min_length = tuple(start), tuple(prefix), min_length
        self.banned = {0, 2} if unknown else {0, 1, 2}

    def extensions(self, tokens):
        log_probs = self.model.log_probs(self.source, self.start + tokens)
        if len(tokens) < len(self.prefix):
            token = self.prefix[len(tokens)]
            return [(token, log_probs[token])]
        banned = self.banned | ({END} if len(tokens) + 1 < self.min_length else set())
        return [(i, log_probs[i]) for i in range(self.model.vocab_size) if i not in banned]

    def finished(self, tokens):
        return tokens[-1] == END or len(tokens) == self.limit

    def everything(self, alpha):
        """All hypotheses there are, best first."""
        found, running = [], [((), 0.0)]
        while running:
            tokens, total = running.pop()
            for token, log_prob in self.extensions(tokens):
                longer = (*tokens, token)
                (found if self.finished(longer) else running).append((longer, total + log_prob))
        return self.ranked(found, alpha)

    def beam(self, width, alpha, early_stop):
        found, running = [], [((), 0.0)]
        while running and not (early_stop and len(found) >= width):
            longer = sorted(
                ((*tokens, token), total + log_prob)
                for tokens, total in running
                for token, log_prob in self.extensions(tokens)
            )
            longer.sort(key=lambda item: -item[1])
            found += [item for item in longer[:width] if self.finished(item[0])]
            running = [item for item in longer if not self.finished(item[0])][:width]
        return self.ranked(found, alpha)[:width]

    @staticmethod
    def ranked(found, alpha):
        scored = [(t, s / ((5 + len(t)) / 6) ** alpha) for t, s in found]
        return sorted(scored, key=lambda item: -item[1])


def check(result, row, expected):
    """Row `row` of a result holds exactly the hypotheses `expected`, then nothing."""
    ids, scores = result.ids.numpy()[row], result.scores.numpy()[row]
    for place, (tokens, score) in enumerate(expected):
        padded = np.pad(tokens, (0, ids.shape[1] - len(tokens)))
        np.testing.assert_array_equal(ids[place], padded)
        np.testing.assert_allclose(scores[place], score, rtol=2e-5, atol=2e-5)
    assert (ids[len(expected) :] == 0).all()
    assert (scores[len(expected) :] == -np.inf).all()


def sentences(batch, length, vocab_size, seed=0):
    """Random sources (B, S), right-padded to different lengths."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(4, vocab_size, size=(batch, length)).astype("int32")
    kept = np.maximum(length - np.arange(batch) % length, 1)
    return np.where(np.arange(length) < kept[:, None], ids, 0).astype("int32")


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("width, alpha", [(1, 0.0), (2, 0.6), (3, 1.0), (5, 0.0), (7, 1.7)])
def test_beam_equals_a_plain_search(width, alpha, early_stop):
    model = FakeModel(11, end_bias=1.0)
    source = sentences(13, 5, 11)
    limits = 3 + np.arange(13, dtype="int32") % 7
    search = BeamSearch(width, alpha, early_stop=early_stop)
    result = search(model, source, max_length=limits)
    for row in range(13):
        reference = Reference(model, source[row], limits[row])
        check(result, row, reference.beam(width, alpha, early_stop))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.3])
def test_wide_beam_finds_all_hypotheses_in_order(alpha):
    model = FakeModel(6)
    source = sentences(3, 2, 6)
    result = BeamSearch(47, alpha)(model, source, max_length=3)
    for row in range(3):
        # 1, 4 and 5 go on, 3 ends: 1 + 3 + 9 * 4 hypotheses
        everything = Reference(model, source[row], 3).everything(alpha)
        assert len(everything) == 40
        check(result, row, everything)


def test_greedy_equals_beam_one_and_the_plain_search():
    model = FakeModel(17, end_bias=0.5)
    source = sentences(7, 5, 17)
    greedy = GreedySearch()(model, source)
    for alpha in (0.0, 1.0):
        beam = BeamSearch(1, alpha)(model, source)
        np.testing.assert_array_equal(greedy.ids, beam.ids)
    np.testing.assert_array_equal(greedy.scores, BeamSearch(1, 0.0)(model, source).scores)
    for row in range(7):
        limit = np.count_nonzero(source[row]) + 50
        check(greedy, row, Reference(model, source[row], limit).beam(1, 0.0, True))

"""A small model for searches, whose probabilities NumPy computes too.

Shapes: B batch, W beam width, S source length, V vocabulary.
"""

import numpy as np
import tensorflow as tf

from keras_transformer.search import Cache

END = 3


class FakeModel:
    """Computes logits from a random table by source, history, last token and position.

    The history comes from the cache alone, which holds one number a fed token. If the search
    reorders it wrongly, or mixes up sentences, the logits differ. `log_probs` is the same in NumPy.
    """

    def __init__(self, vocab_size, *, end_bias=0.0, max_length=None, causal=False, seed=0):
        draw = np.random.default_rng(seed).normal
        self.vocab_size, self.max_length, self.causal = vocab_size, max_length, causal
        self.code = draw(size=vocab_size).astype("float32")
        self.table = (1.5 * draw(size=(vocab_size, vocab_size))).astype("float32")
        self.table[:, END] += end_bias
        self.mix = draw(size=(3, vocab_size)).astype("float32")
        self.traces = 0

    def start_ids(self, source_ids):
        if self.causal:
            return source_ids
        return tf.fill([tf.shape(source_ids)[0], 1], 2)

    def encode(self, source_ids):
        self.traces += 1
        if self.causal:
            return {}
        mask = tf.cast(source_ids != 0, tf.float32)
        return {"sum": tf.reduce_sum(mask * tf.gather(self.code, source_ids), axis=1)}

    def initial_cache(self, batch_size, beam_width):
        size = [batch_size, beam_width]
        own = [{"key": tf.zeros([*size, 0])}, {"key": tf.zeros([*size, 2, 0, 3])}]
        return Cache(by_sentence={"fed": tf.zeros([batch_size, 0])}, by_hypothesis=own)

    def decode_step(self, ids, position, memory, cache):
        if self.max_length is not None:
            tf.debugging.assert_less(position, self.max_length)
        fed = tf.gather(self.code, ids)[..., tf.newaxis]  # (B, W, 1)
        wide = tf.tile(fed[..., tf.newaxis, tf.newaxis], [1, 1, 2, 1, 3])
        past, wide_past = (item["key"] for item in cache.by_hypothesis)
        own = [{"key": tf.concat([past, fed], axis=2)}]
        own.append({"key": tf.concat([wide_past, wide], axis=3)})
        one = tf.ones([tf.shape(ids)[0], 1])
        steps = tf.concat([cache.by_sentence["fed"], one], axis=1)  # (B, t + 1)
        length = tf.shape(steps)[1]
        weight = tf.sin(tf.cast(tf.range(length), tf.float32))
        summary = tf.reduce_sum(weight * own[0]["key"], axis=2)  # (B, W)
        summary += tf.reduce_sum(own[1]["key"], axis=[2, 3, 4]) / 6.0
        features = tf.sin(summary[..., tf.newaxis]) * self.mix[0]
        features += tf.cast(position, tf.float32) * 0.1 * self.mix[1]
        if not self.causal:
            features += memory["sum"][:, tf.newaxis, tf.newaxis] * self.mix[2]
        return tf.gather(self.table, ids) + features, Cache({"fed": steps}, own)

    def log_probs(self, source, fed):
        """log-probabilities (..., V) of the token after `fed` (..., t), with start, in NumPy."""
        fed = np.asarray(fed, int)
        length = fed.shape[-1]
        code = self.code[fed].astype("float64")
        summary = np.sum(np.sin(np.arange(length)) * code, axis=-1) + np.sum(code, axis=-1)
        logits = self.table[fed[..., -1]] + np.sin(summary)[..., None] * self.mix[0]
        logits = logits + (length - 1) * 0.1 * self.mix[1]
        if not self.causal:
            words = np.array([i for i in source if i], int)
            logits = logits + np.sum(self.code[words]) * self.mix[2]
        return logits - np.log(np.sum(np.exp(logits), axis=-1, keepdims=True))


class ByPosition(FakeModel):
    """A model with the same logits after each token of a position.

    Args:
        logits: float32 (T, V).
    """

    def __init__(self, logits):
        super().__init__(logits.shape[1])
        self.logits = logits

    def decode_step(self, ids, position, memory, cache):
        row = tf.gather(self.logits, position)
        return row + tf.zeros([*tf.unstack(tf.shape(ids)), 1]), cache

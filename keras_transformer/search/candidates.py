"""Which tokens may come next, and how likely they are: the ranking of a step's logits.

tf2onnx writes `tf.where(c, x, y)` as c * x + (1 - c) * y, which is NaN where x or y is infinite,
unless x or y is an infinite constant; hence the sums, maxima and -inf constants, here and in the
searches, where a `where` would read as well.

Shapes: B sentences, W hypotheses of each, V vocabulary, N candidates.
"""

import functools
import math

import numpy as np
import tensorflow as tf


def top_candidates(logits, count, forbidden):
    """The `count` likeliest allowed tokens of each hypothesis.

    Probabilities are the model's own: a forbidden token keeps its share of the probability mass.

    Args:
        logits: float32 (B, W, V).
        count: int, how many allowed candidates are needed.
        forbidden: list of pairs (id, when), `when` a boolean tensor that broadcasts to (B, W, N),
            or None for always.

    Returns:
        Log-probabilities, float32 (B, W, N), -inf where forbidden, and ids, int64 (B, W, N), in
        order of falling log-probability, lower id first where equal; N = min(V, count +
        len(forbidden)), but 1 where `count` is. And the log-probabilities of all tokens, (B, W, V).
    """
    log_probs = tf.nn.log_softmax(logits)
    if count == 1:
        vocabulary = np.arange(logits.shape[-1])
        penalty = forbid(np.zeros_like(vocabulary, "float32"), vocabulary, forbidden)  # a constant
        return *top_tokens(log_probs + penalty, 1), log_probs
    # As many as `count` and all forbidden ones: so `count` allowed ones are left.
    values, ids = top_tokens(log_probs, min(logits.shape[-1], count + len(forbidden)))  # (B, W, N)
    return forbid(values, ids, forbidden), ids, log_probs


def top_k(values, count):
    """`tf.math.top_k` with indices as ONNX has them, int64."""
    return tf.math.top_k(values, count, index_type=tf.int64)


def top_tokens(values, count):
    """`top_k` of values (B, W, V), several times faster for large vocabularies.

    The largest are in the `count` parts of the vocabulary with the largest maxima, so only these
    are ranked. Parts stay in order, so that of equal values the lower id comes first.
    """
    vocabulary = values.shape[-1]
    size = next(
        (n for n in range(math.isqrt(vocabulary), 8, -1) if vocabulary % n == 0), vocabulary
    )
    if vocabulary <= 4 * count * size:
        return top_k(values, count)
    shape = tf.concat([tf.shape(values)[:2], [count]], axis=0)
    parts = tf.reshape(values, [-1, vocabulary // size, size])
    best = top_k(tf.reduce_max(parts, axis=2), count).indices  # (B W, N)
    if count > 1:
        best = -top_k(-best, count).values  # in order
    parts = tf.gather(parts, best, batch_dims=1)  # (B W, N, size)
    values, places = top_k(tf.reshape(parts, [-1, count * size]), count)  # (B W, N)
    if count > 1:
        part = places // size  # of which `places` already counts the elements
        best = tf.gather(best, part, batch_dims=1) - part
    return tf.reshape(values, shape), tf.reshape(best * size + places, shape)


def forbid(values, ids, forbidden):
    """`values` with -inf at the forbidden ids."""
    banned = [
        tf.equal(ids, token) if when is None else tf.logical_and(tf.equal(ids, token), when)
        for token, when in forbidden
    ]
    return tf.where(functools.reduce(tf.logical_or, banned), -np.inf, values)


def select(condition, x, y):
    """`tf.where` for log-probabilities, which may be -inf in `x` and `y`."""
    return tf.maximum(tf.where(condition, x, -np.inf), tf.where(condition, -np.inf, y))

"""Which tokens may come next, and how likely they are: the ranking of a step's logits.

tf2onnx writes `tf.where(c, x, y)` as c * x + (1 - c) * y. That is NaN where x or y is infinite,
unless it is an infinite constant. So the searches use sums, maxima and constants of -inf in places
where a `where` would read more easily.

Shapes: B batch, W beam width, V vocabulary, C candidates.
"""

import functools
import math

import numpy as np
import tensorflow as tf

from keras_transformer.special_ids import NUM_SPECIAL


def top_candidates(logits, count, forbidden):
    """The `count` likeliest allowed tokens of each hypothesis.

    Probabilities are the model's own: forbidden tokens keep their share.

    Args:
        logits: float32 (B, W, V). Where the graph does not know V, V is at least `count +
            NUM_SPECIAL`, and only special ids may be forbidden.
        count: int, how many allowed candidates are needed.
        forbidden: list of pairs (id, when), `when` a boolean tensor that broadcasts to (B, W, C),
            or `None` for always.

    Returns:
        Log-probabilities, float32 (B, W, C), -inf where forbidden, and ids, int64 (B, W, C), the
        likeliest first, lower ids first where equal; C = min(V, count + len(forbidden)), but 1
        where `count` is 1. And the log-probabilities of all tokens, (B, W, V).
    """
    if logits.shape[-1] is None and any(token >= NUM_SPECIAL for token, _ in forbidden):
        raise ValueError(f"Among fewer words only special ids may be forbidden, got {forbidden}.")
    log_probs = tf.nn.log_softmax(logits)
    if count == 1:
        return *top_tokens(_allowed(log_probs, forbidden), 1), log_probs
    # If all forbidden tokens are among them, `count` allowed ones are left.
    enough = count + len(forbidden)
    values, ids = top_tokens(log_probs, min(logits.shape[-1] or enough, enough))  # (B, W, C)
    return forbid(values, ids, forbidden), ids, log_probs


def _allowed(log_probs, forbidden):
    """`log_probs` with -inf at the forbidden ids, which are the lowest ones."""
    if log_probs.shape[-1]:
        ids = np.arange(log_probs.shape[-1])
        return log_probs + forbid(np.zeros_like(ids, "float32"), ids, forbidden)
    ids = np.arange(NUM_SPECIAL)
    lowest = log_probs[..., :NUM_SPECIAL] + forbid(np.zeros_like(ids, "float32"), ids, forbidden)
    return tf.concat([lowest, log_probs[..., NUM_SPECIAL:]], axis=-1)


def top_k(values, count):
    """`tf.math.top_k` with int64 indices, as in ONNX."""
    return tf.math.top_k(values, count, index_type=tf.int64)


def top_tokens(values, count):
    """`top_k` of values (B, W, V), several times faster for large vocabularies.

    The vocabulary is cut into parts. The largest values are in the `count` parts with the largest
    maxima, so only these are ranked. They stay in order, so lower ids come first among equals.
    """
    vocabulary = values.shape[-1]
    if vocabulary is None:
        return top_k(values, count)
    size = next(
        (n for n in range(math.isqrt(vocabulary), 8, -1) if vocabulary % n == 0), vocabulary
    )
    if vocabulary <= 4 * count * size:
        return top_k(values, count)
    shape = tf.concat([tf.shape(values)[:2], [count]], axis=0)
    parts = tf.reshape(values, [-1, vocabulary // size, size])
    best = top_k(tf.reduce_max(parts, axis=2), count).indices  # (B W, C)
    if count > 1:
        best = -top_k(-best, count).values  # in order
    parts = tf.gather(parts, best, batch_dims=1)  # (B W, C, size)
    values, places = top_k(tf.reshape(parts, [-1, count * size]), count)  # (B W, C)
    if count > 1:
        part = places // size  # `places` counts the elements of the parts before it
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
    """`tf.where` for log-probabilities: `x` and `y` may hold -inf."""
    return tf.maximum(tf.where(condition, x, -np.inf), tf.where(condition, -np.inf, y))

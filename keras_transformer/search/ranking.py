"""The ranking of next tokens by their log-probability.

tf2onnx writes `tf.where(c, x, y)` as c * x + (1 - c) * y. The result is NaN if x or y is infinite,
unless it is an infinite constant. The searches therefore use sums, maxima and constants of -inf in
some places where `tf.where` would be easier to read.

Shapes: B batch, W beam width, V vocabulary, K listed ids, C candidates.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import tensorflow as tf

from keras_transformer.special_ids import NUM_SPECIAL, PAD_ID
from keras_transformer.types import Array, Tensor

# The logit of an id outside a shortlist: e^-10000 is 0, and unlike -inf it never gives NaN.
NOT_LISTED = -1e4
# All ids below this one are listed, so that a search finds as many candidates as it ranks.
LEAST_LISTED = 32

# Ids that may not be chosen, each with the condition under which it is forbidden: a boolean tensor
# that broadcasts to (B, W, C), or `None` for always.
Forbidden = Sequence[tuple[int, Tensor | None]]

# ONNX has int64 indices, too.
top_k: Callable[[Tensor, int], tuple[Tensor, Tensor]] = functools.partial(
    tf.math.top_k, index_type=tf.int64
)


@dataclasses.dataclass(frozen=True)
class ListedScores:
    """Logits or log-probabilities of some ids of the vocabulary.

    `top_candidates` ranks the listed ids only, which takes a fraction of the time. All other
    TensorFlow functions see a tensor (B, W, V) with `NOT_LISTED` for all other ids.

    Args:
        scores: float32 (B, W, K).
        ids: int64 (K,), the listed ids in ascending order. All ids below `LEAST_LISTED` must be
            among them.
        columns: int32 (V,), the place of each id in `ids`; 0 for ids that are not listed.
    """

    scores: Tensor
    ids: Tensor
    columns: Tensor

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
        batch_size, width, listed = tf.unstack(tf.shape(self.scores))
        # ONNX Runtime copies whole rows far faster than single numbers: one row for each id.
        rows = tf.transpose(tf.reshape(self.scores, [batch_size * width, listed]))  # (K, B W)
        vocab_size = self.columns.shape[0]
        every = tf.fill([vocab_size, batch_size * width], NOT_LISTED)
        every = tf.tensor_scatter_nd_update(every, tf.expand_dims(self.ids, 1), rows)
        every = tf.reshape(tf.transpose(every), [batch_size, width, vocab_size])
        return tf.convert_to_tensor(every, dtype, name=name)


Logits = TypeVar("Logits", Tensor, ListedScores)


def scores_of(logits: Tensor | ListedScores) -> Tensor:
    """Returns the scores (B, W, C) of all ids, or of the listed ids."""
    return logits.scores if isinstance(logits, ListedScores) else logits


def with_scores(logits: Logits, scores: Tensor) -> Logits:
    """Replaces the scores (B, W, C) of `logits`."""
    return (
        dataclasses.replace(logits, scores=scores) if isinstance(logits, ListedScores) else scores
    )


def ids_of(logits: Tensor | ListedScores) -> Tensor | Array:
    """Returns the ids of the columns of `scores_of`, int32 (C,)."""
    if isinstance(logits, ListedScores):
        return tf.cast(logits.ids, tf.int32)
    return np.arange(logits.shape[-1], dtype=np.int32)


def log_softmax(logits: Logits) -> Logits:
    """Computes log-probabilities, float32 (B, W, V), of logits (B, W, V)."""
    return with_scores(logits, tf.nn.log_softmax(tf.cast(scores_of(logits), tf.float32)))


def log_probs_of(ids: Tensor, log_probs: Tensor | ListedScores) -> Tensor:
    """Returns the log-probabilities (B, W, N) of ids.

    Args:
        ids: int (B, W, N), or (B, 1, N) for all hypotheses.
        log_probs: float32 (B, W, V).
    """
    listed, column = log_probs, tf.cast(ids, tf.int32)
    if isinstance(listed, ListedScores):
        log_probs, column = listed.scores, tf.gather(listed.columns, ids)
    batch_size, width, size = tf.unstack(tf.shape(log_probs))
    offset = tf.reshape(tf.range(batch_size * width) * size, [batch_size, width, 1])
    found = tf.gather(tf.reshape(log_probs, [-1]), offset + column)
    if isinstance(listed, ListedScores):
        is_listed = tf.logical_or(column > 0, tf.equal(tf.cast(ids, tf.int32), PAD_ID))
        found = tf.where(is_listed, found, NOT_LISTED)
    return found


def top_candidates(
    log_probs: Tensor | ListedScores, count: int, forbidden: Forbidden
) -> tuple[Tensor, Tensor]:
    """Finds the `count` most likely allowed tokens of each hypothesis.

    Forbidden tokens keep their share of the probability.

    Args:
        log_probs: float32 (B, W, V).
        count: int, how many allowed candidates are needed.
        forbidden: see `Forbidden`. All ids must be special ids.

    Returns:
        Log-probabilities, float32 (B, W, C), and ids, int64 (B, W, C). The most likely candidate
        comes first, the lower id where two are equally likely. A forbidden candidate has the
        log-probability -inf. C is 1 if `count` is 1, else min(V, count + len(forbidden)).
    """
    enough = count + len(forbidden)  # leaves `count`, even if all forbidden ones are found
    listed = None
    if isinstance(log_probs, ListedScores) and enough <= LEAST_LISTED:
        log_probs, listed = log_probs.scores, log_probs.ids
    log_probs = tf.convert_to_tensor(log_probs)
    if count == 1:
        values, ids = top_tokens(_allowed(log_probs, forbidden), 1)
    else:
        values, ids = top_tokens(log_probs, min(log_probs.shape[-1] or enough, enough))
        values = forbid(values, ids, forbidden)
    return values, ids if listed is None else tf.gather(listed, ids)


def _allowed(log_probs: Tensor, forbidden: Forbidden) -> Tensor:
    """Sets `log_probs` to -inf at the forbidden ids.

    The special ids are the lowest ones and always listed, so that their columns are known.
    """
    size = log_probs.shape[-1]
    ids = np.arange(size or NUM_SPECIAL)
    penalties = forbid(np.zeros_like(ids, "float32"), ids, forbidden)
    if size:
        return log_probs + penalties
    special = log_probs[..., :NUM_SPECIAL] + penalties
    return tf.concat([special, log_probs[..., NUM_SPECIAL:]], axis=-1)


def top_tokens(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Computes `top_k` of values (B, W, V) several times faster for large vocabularies.

    The vocabulary is divided into parts. The largest values are in the `count` parts with the
    largest maxima, so only these parts are ranked. The parts stay in order, so that the lower id
    comes first where two values are equal.
    """
    vocabulary = values.shape[-1]
    if vocabulary is None:
        return top_k(values, count)
    sizes = (n for n in range(math.isqrt(vocabulary), 8, -1) if vocabulary % n == 0)
    size = next(sizes, vocabulary)
    if vocabulary <= 4 * count * size:
        return top_k(values, count)
    shape = tf.concat([tf.shape(values)[:2], [count]], axis=0)
    parts = tf.reshape(values, [-1, vocabulary // size, size])
    _, best = top_k(tf.reduce_max(parts, axis=2), count)  # (B W, C)
    if count > 1:
        best = -top_k(-best, count)[0]  # in ascending order
    parts = tf.gather(parts, best, batch_dims=1)  # (B W, C, size)
    values, places = top_k(tf.reshape(parts, [-1, count * size]), count)  # (B W, C)
    if count > 1:
        part = places // size  # `places` counts the elements of the parts before it
        best = tf.gather(best, part, batch_dims=1) - part
    return tf.reshape(values, shape), tf.reshape(best * size + places, shape)


def forbid(values: Tensor, ids: Tensor, forbidden: Forbidden) -> Tensor:
    """Sets `values` to -inf at the forbidden ids."""
    banned = [
        tf.equal(ids, token) if when is None else tf.logical_and(tf.equal(ids, token), when)
        for token, when in forbidden
    ]
    return tf.where(functools.reduce(tf.logical_or, banned), -np.inf, values)


def select(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Selects as `tf.where` does, but `x` and `y` may hold -inf."""
    return tf.maximum(tf.where(condition, x, -np.inf), tf.where(condition, -np.inf, y))

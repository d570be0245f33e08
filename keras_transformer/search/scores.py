"""The scores of the next tokens, and their ranking.

tf2onnx writes `tf.where(c, x, y)` as c * x + (1 - c) * y. The result is NaN if x or y is infinite,
unless it is an infinite constant. The searches therefore use sums, maxima and constants of -inf in
some places where `tf.where` would be easier to read.

Shapes: B batch, W beam width, V vocabulary, K listed ids, C columns.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

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


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    """Logits or log-probabilities of the next tokens: of all ids, or of listed ids only.

    A model with a `Shortlist` computes the logits of K listed ids, and ranking them takes a
    fraction of the time. TensorFlow functions see a tensor (B, W, V), see `dense`.

    Args:
        values: float (B, W, C). C is V, or K with `ids`.
        ids: int64 (K,), the listed ids in ascending order. All ids below `LEAST_LISTED` must be
            among them. Defaults to `None`: all ids.
        columns: int32 (V,), the place of each id in `ids`; 0 for ids that are not listed. Required
            with `ids`.

    Example:

    >>> scores = Scores(tf.constant([[[0.0, 3.0, 2.0, 1.0]]])).log_softmax()
    >>> scores.top(2, forbidden=[(0, None)])[1].numpy().tolist()  # and one more, if 0 were found
    [[[1, 2, 3]]]
    """

    values: Tensor
    ids: Tensor | None = None
    columns: Tensor | None = None

    @classmethod
    def of(cls, logits: "Tensor | Scores") -> "Scores":
        """Returns logits (B, W, V), or `Scores`, as `Scores` in float32."""
        scores = logits if isinstance(logits, cls) else cls(logits)
        return dataclasses.replace(scores, values=tf.cast(scores.values, tf.float32))

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.values.shape[-1] if self.columns is None else self.columns.shape[0]

    @property
    def column_ids(self) -> Tensor | Array:
        """The id of each column of `values`, int32 (C,)."""
        if self.ids is None:
            return np.arange(self.vocab_size, dtype=np.int32)
        return tf.cast(self.ids, tf.int32)

    @property
    def is_padding(self) -> Tensor | Array:
        """Whether each column is the padding token, boolean (C,)."""
        return self.column_ids == PAD_ID

    @property
    def dense(self) -> Tensor:
        """The values of all ids, (B, W, V); `NOT_LISTED` for ids that are not listed."""
        if self.ids is None:
            return tf.convert_to_tensor(self.values)
        batch_size, width, listed = tf.unstack(tf.shape(self.values))
        # One row for each id, as in `spread`.
        rows = tf.transpose(tf.reshape(self.values, [batch_size * width, listed]))  # (K, B W)
        every = tf.fill([self.vocab_size, batch_size * width], NOT_LISTED)
        every = tf.tensor_scatter_nd_update(every, tf.expand_dims(self.ids, 1), rows)
        return tf.reshape(tf.transpose(every), [batch_size, width, self.vocab_size])

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.dense, dtype, name=name)

    def with_values(self, values: Tensor) -> "Scores":
        """Replaces the values (B, W, C). They keep their static shape, which the loop requires."""
        values = tf.convert_to_tensor(values)
        values.set_shape([None, *self.values.shape[1:]])
        return dataclasses.replace(self, values=values)

    def log_softmax(self) -> "Scores":
        """Computes the log-probabilities of logits."""
        return dataclasses.replace(self, values=tf.nn.log_softmax(self.values))

    def at(self, ids: Tensor) -> Tensor:
        """Returns the values (B, W, N) of ids: int (B, W, N), or (B, 1, N) for all hypotheses."""
        column = tf.cast(ids, tf.int32)
        if self.columns is not None:
            column = tf.gather(self.columns, ids)
        batch_size, width, size = tf.unstack(tf.shape(self.values))
        offset = tf.reshape(tf.range(batch_size * width) * size, [batch_size, width, 1])
        found = tf.gather(tf.reshape(self.values, [-1]), offset + column)
        if self.columns is not None:
            is_listed = tf.logical_or(column > 0, tf.equal(tf.cast(ids, tf.int32), PAD_ID))
            found = tf.where(is_listed, found, NOT_LISTED)
        return found

    def among(self, ids: Tensor) -> Tensor:
        """Returns whether the id of each column is one of the ids of its hypothesis.

        Args:
            ids: int32 (B, W, N), each in [0, V).

        Returns:
            Boolean (B, W, C). It has no meaning for padding.
        """
        if self.columns is not None:
            ids = tf.gather(self.columns, ids)
        shape = tf.shape(self.values)
        offset = tf.reshape(shape[2] * tf.range(shape[0] * shape[1]), [shape[0], shape[1], 1])
        places = tf.reshape(ids + offset, [-1, 1])
        none = tf.fill([tf.reduce_prod(shape)], False)
        found = tf.tensor_scatter_nd_update(none, places, tf.ones_like(places[:, 0], tf.bool))
        return tf.reshape(found, shape)

    def without(self, forbidden: Tensor) -> "Scores":
        """Sets the logits of forbidden tokens to -inf, see `constraints.forbid_tokens`.

        Args:
            forbidden: boolean, broadcasts to (B, W, C).
        """
        forbidden = tf.logical_or(forbidden, self.is_padding)
        peak = tf.reduce_max(self.values, axis=-1, keepdims=True)
        share = tf.exp(self.values - peak) * tf.cast(forbidden, tf.float32)
        share = peak + tf.math.log(tf.reduce_sum(share, axis=-1, keepdims=True))  # (B, W, 1)
        others = tf.where(forbidden, -np.inf, self.values)[..., PAD_ID + 1 :]
        return self.with_values(tf.concat([share, others], axis=-1))

    def _allowed(self, forbidden: Forbidden) -> Tensor:
        """Returns the values (B, W, C), -inf at the forbidden ids.

        The special ids are the lowest ones and always listed, so that their columns are known.
        """
        size = self.values.shape[-1]
        penalties = _penalties(forbidden, size or NUM_SPECIAL)
        if size:
            return self.values + penalties
        special = self.values[..., :NUM_SPECIAL] + penalties
        return tf.concat([special, self.values[..., NUM_SPECIAL:]], axis=-1)

    def top(self, count: int, forbidden: Forbidden) -> tuple[Tensor, Tensor]:
        """Finds the `count` most likely allowed tokens of each hypothesis.

        Forbidden tokens keep their share of the probability.

        Args:
            count: int, how many allowed tokens are needed.
            forbidden: see `Forbidden`. All ids must be special ids.

        Returns:
            Values, float32 (B, W, N), and ids, int64 (B, W, N). The most likely token comes first,
            the lower id where two are equally likely. A forbidden token has the value -inf. N is 1
            if `count` is 1, else min(V, count + len(forbidden)).
        """
        enough = count + len(forbidden)  # leaves `count`, even if all forbidden ones are found
        scores = self
        if self.ids is not None and enough > LEAST_LISTED:
            scores = Scores(self.dense)
        if count == 1:
            values, ids = top_tokens(scores._allowed(forbidden), 1)
        else:
            size = scores.values.shape[-1]
            values, ids = top_tokens(scores.values, min(size or enough, enough))
            values = forbid(values, ids, forbidden, size)
        return values, ids if scores.ids is None else tf.gather(scores.ids, ids)


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


def forbid(values: Tensor, ids: Tensor, forbidden: Forbidden, size: int | None = None) -> Tensor:
    """Sets `values` to -inf at the forbidden ids.

    Args:
        values: float32 (B, W, C).
        ids: integers, broadcast to (B, W, C).
        forbidden: see `Forbidden`.
        size: int, all ids are below it. Ids that are always forbidden are then found in a table,
            by two operators. Defaults to `None`.
    """
    if size is not None:
        always = [(token, when) for token, when in forbidden if when is None]
        forbidden = [(token, when) for token, when in forbidden if when is not None]
        values += tf.gather(_penalties(always, size), ids)
    banned = [
        tf.equal(ids, token) if when is None else tf.logical_and(tf.equal(ids, token), when)
        for token, when in forbidden
    ]
    return tf.where(functools.reduce(tf.logical_or, banned), -np.inf, values) if banned else values


def _penalties(forbidden: Forbidden, size: int) -> Tensor | Array:
    """Returns -inf for the forbidden ids and 0 for all others: float32 (V,), or (B, W, V)."""
    ids = np.arange(size)
    always = [token for token, when in forbidden if when is None]
    sometimes = [(token, when) for token, when in forbidden if when is not None]
    penalties = np.where(np.isin(ids, always), -np.inf, 0).astype("float32")
    return forbid(penalties, ids, sometimes)


def spread(values: Tensor, places: Tensor) -> Tensor:
    """Gathers columns of values (B, W, C) by places, int (N,): returns (B, W, N).

    ONNX Runtime copies whole rows 30 times faster than single numbers, so it gathers rows.
    """
    batch_size, width, columns = tf.unstack(tf.shape(values))
    rows = tf.transpose(tf.reshape(values, [batch_size * width, columns]))  # (C, B W)
    found = tf.transpose(tf.gather(rows, places))
    return tf.reshape(found, [batch_size, width, tf.size(places)])


def select(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Selects as `tf.where` does, but `x` and `y` may hold -inf."""
    return tf.maximum(tf.where(condition, x, -np.inf), tf.where(condition, -np.inf, y))

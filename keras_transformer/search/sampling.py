"""Sampling: random tokens from the model's distribution, the same in Keras, SavedModel and ONNX.

Shapes: B batch, W samples of a sentence, S source length, T generated length, V vocabulary, C
candidates.
"""

import numbers
import secrets
from dataclasses import dataclass, field

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.search.candidates import forbid, top_candidates
from keras_transformer.search.checks import check_number, integer_ids
from keras_transformer.search.independent import IndependentSearch
from keras_transformer.search.sources import source_numbers

# Random numbers are made modulo this prime by three rounds of x -> (x + constant)^5. Raising to
# the fifth power permutes the residues, for 5 does not divide PRIME - 1. Constants: digits of pi.
PRIME = 2**31 - 1
ROUND_CONSTANTS = (314159265, 358979323, 846264338)


def _mix(x):
    """A fixed random-looking permutation of [0, PRIME), for int64 of at most 2^33.

    It uses additions, products and remainders only: random numbers in ONNX do not depend on a seed
    and a position alone.
    """
    for constant in ROUND_CONSTANTS:
        x = (x + constant) % PRIME
        square = x * x % PRIME
        x = square * square % PRIME * x % PRIME
    return x


def _uniform_noise(source, seed, samples, length):
    """Random numbers that depend on seed, source, sample and position alone.

    Args:
        source: integers (B, S), 0 for padding: tokens, or `source_numbers` of other sources.
        seed: int32 scalar, at least 0.
        samples: int, W.
        length: int32 scalar, T.

    Returns:
        float32 (T, B, W), uniform on the multiples of 2^-23 in [0, 1).
    """
    mask = tf.cast(source != 0, tf.int64)
    rank = tf.cumsum(mask, axis=1)  # numbers of the tokens, padding left out
    tokens = _mix(_mix(tf.cast(source, tf.int64)) + rank) * mask  # (B, S)
    key = tf.reduce_sum(tokens, axis=1, keepdims=True) % PRIME  # (B, 1)
    key = _mix(_mix(tf.cast(seed, tf.int64)) + key)
    key = _mix(key + np.arange(samples))  # (B, W)
    position = tf.reshape(tf.cast(tf.range(length), tf.int64), [-1, 1, 1])
    noise = _mix(key + position)  # (T, B, W)
    return tf.cast(noise // 2**8, tf.float32) * 2.0**-23


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class Sampling(IndependentSearch):
    """Random tokens from the model's distribution, reshaped by temperature, top-k and top-p.

    In the usual order: logits are divided by `temperature`; all but the `top_k` likeliest allowed
    tokens are dropped; of these only the smallest set with a share `top_p` of the probability is
    kept ("nucleus"). Each token that is left is drawn in proportion to its probability.

    A sample depends on the seed, on the tokens of its own source and on its number; not on the
    other sentences, their order or the padding. With one seed, equal sentences get equal samples:
    pass `num_samples` to get several. Scores are sums of the model's own log-probabilities, before
    reshaping. The samples of a sentence are ordered by score and may repeat.

    Args:
        temperature: number above 0; below 1 sharpens, above 1 flattens. Defaults to 1.0.
        top_k: int, 0 for no such limit. Defaults to 0.
        top_p: number in (0, 1], 1.0 for no such limit. Defaults to 1.0.
        seed: int in [0, 2^31 - 2]; `None` for a new one at each eager call. A traced graph
            (SavedModel, ONNX) holds the seed that was drawn while tracing, unless the call gets
            `seed` as a tensor.
        num_samples: int, W. Defaults to 1.
        min_length, allow_unknown: as in `GreedySearch`.

    Call arguments: those of `GreedySearch`, and
        seed: int or int32 scalar tensor, in place of the constructor's.

    Returns:
        `SearchResult` with ids (B, num_samples, T).

    Example:

    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> source_ids = np.array([[5, 11, 23], [7, 13, 0]], "int32")
    >>> result = Sampling(temperature=0.8, top_k=10, seed=1, num_samples=3)(model, source_ids)
    >>> result.scores.shape
    TensorShape([2, 3])
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    num_samples: int = field(default=1, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        tiny = np.finfo("float32").tiny
        check_number(self.temperature, "temperature", numbers.Real, tiny)
        check_number(self.top_k, "top_k", numbers.Integral, 0)
        check_number(self.top_p, "top_p", numbers.Real, tiny, 1)
        check_number(self.num_samples, "num_samples", numbers.Integral, 1)
        if self.seed is not None:
            check_number(self.seed, "seed", numbers.Integral, 0, PRIME - 1)

    _width = _distinct = _history_rows = property(lambda self: self.num_samples)

    def __call__(self, model, source_ids, max_length=None, *, target_prefix=None, seed=None):
        """Sample; see the class for arguments and result."""
        if seed is None:
            seed = secrets.randbelow(PRIME) if self.seed is None else self.seed
        if not tf.is_tensor(seed):
            check_number(seed, "seed", numbers.Integral, 0, PRIME - 1)
        seed = integer_ids(seed, "seed", rank=0)
        return self._call(model, source_ids, max_length, target_prefix, seed=seed)

    def _noise(self, length, options):
        # At least 1: an empty batch has no maximum, and its step reads a number, too.
        longest = tf.reduce_max(tf.concat([tf.reshape(length, [-1]), [1]], axis=0))
        source = source_numbers(options["source"])
        return _uniform_noise(source, options["seed"], self.num_samples, longest)

    def _choose(self, position, logits, count, plan):
        log_probs, ids, everything = self._candidates(logits, count)  # (B, W, C)
        # The peak is finite, so that the weights are 0, not NaN, if all tokens are forbidden.
        peak = tf.maximum(tf.reduce_max(log_probs, axis=-1, keepdims=True), np.float32(-1e30))
        weights = tf.exp((log_probs - peak) / self.temperature)
        cumulative = tf.cumsum(weights, axis=-1)
        total = cumulative[..., -1:]
        if self.top_p < 1:  # candidates are sorted: keep those before which less than top_p lies
            kept = tf.cast(cumulative - weights < self.top_p * total, tf.float32)
            total = tf.reduce_max(cumulative * kept, axis=-1, keepdims=True)  # (B, W, 1)
        # Inverse of the cumulative distribution: one random number a token.
        drawn = tf.expand_dims(tf.gather(plan.noise, position), 2) * total  # (B, W, 1)
        index = tf.reduce_sum(tf.cast(cumulative <= drawn, tf.int64), axis=-1, keepdims=True)
        index = tf.minimum(index, log_probs.shape[-1] - 1)  # (B, W, 1)
        token = index if ids is None else tf.gather(ids, index, batch_dims=2)
        token, log_prob = token[..., 0], tf.gather(log_probs, index, batch_dims=2)[..., 0]
        return tf.cast(token, tf.int32), log_prob, everything

    def _candidates(self, logits, count):
        """Log-probabilities, ids (None: all, in order) and the log-probabilities of all tokens."""
        forbidden = self._forbidden(count)
        if self.top_k or self.top_p < 1:
            wanted = self.top_k or logits.shape[-1]
            log_probs, ids, everything = top_candidates(logits, wanted, forbidden)
            if self.top_k:
                rank = tf.cumsum(tf.cast(log_probs > -np.inf, tf.int32), axis=-1)  # from 1
                log_probs = tf.where(rank > self.top_k, -np.inf, log_probs)
            return log_probs, ids, everything
        log_probs = tf.nn.log_softmax(logits)
        return forbid(log_probs, np.arange(logits.shape[-1]), forbidden), None, log_probs

    def _result(self, state, plan):
        scores, order = tf.math.top_k(state.scores, self.num_samples)  # (B, W)
        history = tf.gather(state.history, order, batch_dims=1)
        return super()._result(state._replace(scores=scores, history=history), plan)

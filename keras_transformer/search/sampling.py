"""Sampling: random tokens from the model's distribution.

Shapes: B batch, W samples of a sentence, S source length, Q prefix length, T generated length,
V vocabulary, C tokens to draw from.
"""

import numbers
import secrets
from dataclasses import dataclass, field
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.call_options import check_number
from keras_transformer.decoding import SearchModel
from keras_transformer.search.base import SearchResult
from keras_transformer.search.greedy import IndependentSearch
from keras_transformer.search.inputs import Source
from keras_transformer.search.loop import Hypotheses, LoopInputs
from keras_transformer.search.scores import Scores, forbid, select
from keras_transformer.types import Tensor

# Random numbers are generated modulo this prime, by three rounds of x -> (x + constant)^5. Raising
# to the fifth power permutes the residues because 5 does not divide PRIME - 1. The constants are
# digits of pi.
PRIME = 2**31 - 1
ROUND_CONSTANTS = (314159265, 358979323, 846264338)


def _mix(x: Tensor) -> Tensor:
    """Applies a fixed random-looking permutation of [0, PRIME) to int64 of at most 2^33.

    It uses additions, products and remainders only, because ONNX's random numbers do not depend on
    seed and position alone.
    """
    for constant in ROUND_CONSTANTS:
        x = (x + constant) % PRIME
        square = x * x % PRIME
        x = square * square % PRIME * x % PRIME
    return x


def uniform_noise(source: Tensor, seed: Tensor, samples: int, length: Tensor) -> Tensor:
    """Returns random numbers that depend only on seed, source, sample and position.

    Args:
        source: integers (B, S), 0 for padding: token ids, or the integers of another source.
        seed: int32 scalar, at least 0.
        samples: int, W.
        length: int32 scalar, T.

    Returns:
        float32 (T, B, W), uniform on the multiples of 2^-23 in [0, 1).
    """
    mask = tf.cast(source != 0, tf.int64)
    rank = tf.cumsum(mask, axis=1)  # positions of the tokens, not counting padding
    tokens = _mix(_mix(tf.cast(source, tf.int64)) + rank) * mask  # (B, S)
    key = tf.reduce_sum(tokens, axis=1, keepdims=True) % PRIME  # (B, 1)
    key = _mix(_mix(tf.cast(seed, tf.int64)) + key)
    key = _mix(key + np.arange(samples))  # (B, W)
    position = tf.reshape(tf.cast(tf.range(length), tf.int64), [-1, 1, 1])
    noise = _mix(key + position)  # (T, B, W)
    return tf.cast(noise // 2**8, tf.float32) * 2.0**-23


def start_draws(
    source: Tensor, seed: Tensor, samples: int, loop_inputs: LoopInputs, hypotheses: Hypotheses
) -> tuple[LoopInputs, Hypotheses]:
    """Prepares a search that draws: its random numbers, and hypotheses that all run.

    Args:
        source, seed, samples: as in `uniform_noise`.
        loop_inputs, hypotheses: before the first step.
    """
    length = loop_inputs.limit + (loop_inputs.given.prompt_length if loop_inputs.given else 1)
    # At least 1: an empty batch has no maximum, and its only step reads a number too.
    longest = tf.reduce_max(tf.concat([tf.reshape(length, [-1]), [1]], axis=0))
    noise = uniform_noise(source, seed, samples, longest)
    running = tf.where(loop_inputs.limit > 0, np.zeros(samples, "float32"), -np.inf)
    return loop_inputs._replace(noise=noise), hypotheses._replace(running=running)


def draw(
    values: Tensor,
    ids: Tensor | None,
    number: Tensor,
    temperature: Tensor | float,
    top_p: Tensor | float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Draws a token in proportion to its probability.

    Args:
        values: float32 (B, W, C), log-probabilities of the tokens; sorted if `top_p` is used.
        ids: int64 (B, W, C), their ids; `None` for 0 to C - 1.
        number: float32 (B, W), one random number in [0, 1) for each draw.
        temperature, top_p: as in `Sampling`.

    Returns:
        The drawn ids, int64 (B, W, 1), and their log-probabilities, float32 (B, W, 1).
    """
    # The peak is finite, so that the weights are 0, not NaN, if all tokens are forbidden.
    peak = tf.maximum(tf.reduce_max(values, axis=-1, keepdims=True), np.float32(-1e30))
    weights = tf.exp((values - peak) / temperature)
    cumulative = tf.cumsum(weights, axis=-1)
    total = cumulative[:, :, -1:]
    if tf.is_tensor(top_p) or top_p < 1:
        # The tokens are sorted: keep those that have less than `top_p` before them.
        kept = tf.cast(cumulative - weights < top_p * total, tf.float32)
        total = tf.reduce_max(cumulative * kept, axis=-1, keepdims=True)  # (B, W, 1)
    # Inverse of the cumulative distribution.
    drawn = tf.expand_dims(number, 2) * total  # (B, W, 1)
    index = tf.reduce_sum(tf.cast(cumulative <= drawn, tf.int64), axis=-1, keepdims=True)
    index = tf.minimum(index, values.shape[-1] - 1)
    drawn_ids = index if ids is None else tf.gather(ids, index, batch_dims=2)
    return drawn_ids, tf.gather(values, index, batch_dims=2)


def _source_integers(source: Source) -> Tensor:
    """Converts the source to integers (B, N), 0 for padding.

    Floats are rounded to multiples of 2^-12, so that all runtimes get the same integers.
    """
    rows = []
    for tensor in source.values():
        if tensor.dtype.is_floating:
            scaled = tf.clip_by_value(tf.cast(tensor, tf.float32) * 2.0**12, -(2.0**31), 2.0**31)
            tensor = tf.floor(scaled)
        tensor = tf.cast(tensor, tf.int64)
        if tensor.shape.rank != 2:
            shape = tf.shape(tensor)
            tensor = tf.reshape(tensor, [shape[0], tf.reduce_prod(shape[1:])])
        rows.append(tensor)
    return tf.concat(rows, axis=1)


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class Sampling(IndependentSearch):
    """Random tokens from the model's distribution, reshaped by temperature, top-k and top-p.

    The order is the usual one. Logits are divided by `temperature`. Only the `top_k` most likely
    allowed tokens are kept. Of these, only the smallest set with a share `top_p` of the probability
    is kept ("nucleus"). Remaining tokens are drawn in proportion to their probabilities.

    A sample depends on the seed, on the tokens of its source and on its number. It does not depend
    on the other sentences, their order or the padding. Equal sentences get equal samples
    from one seed: pass `num_samples` to get several. Scores are sums of the model's own
    log-probabilities, before reshaping. The samples of a sentence are ordered by score and may
    repeat. Keras, SavedModel and ONNX give the same results.

    Args:
        temperature: number above 0; below 1 sharpens, above 1 flattens. Defaults to 1.0.
        top_k: int, 0 for no such limit. Defaults to 0.
        top_p: number in (0, 1], 1.0 for no such limit. Defaults to 1.0.
        seed: int in [0, 2^31 - 2]; `None` for a new one at each eager call. A `tf.function` holds
            the seed that was drawn while tracing, unless the call gets `seed` as a tensor. An
            exported search has the input `seed`, for which the runtime also takes this one.
        num_samples: int, W. Defaults to 1.
        min_length, allow_unknown, constraints, token_scores, alignments: as in
            `GreedySearch`.

    Call arguments: see `Search.__call__`.

    Returns:
        `SearchResult` with ids (B, num_samples, T).

    Example:

    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> source_ids = np.array([[5, 11, 23], [7, 13, 0]], "int32")
    >>> result = Sampling(temperature=0.8, top_k=10, seed=1, num_samples=3)(model, source_ids)
    >>> result.scores.shape
    TensorShape([2, 3])
    """

    options: ClassVar[tuple[str, ...]] = (
        *IndependentSearch.options,
        *("temperature", "top_k", "top_p", "seed"),
    )

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    num_samples: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.num_samples, "num_samples", numbers.Integral, 1)

    @property
    def free_options(self) -> set[str]:
        """See `Search.free_options`."""
        used = {"top_k": self.top_k > 0, "top_p": self.top_p < 1, "temperature": True}
        return super().free_options | {name for name, is_used in used.items() if is_used}

    @property
    def width(self) -> int:
        """W, `num_samples`."""
        return self.num_samples

    def __call__(
        self, model: SearchModel, source_ids: Any, max_length: Any = None, **options: Any
    ) -> SearchResult:
        """Draws samples. See `Search.__call__`."""
        if options.get("seed") is None:
            drawn = secrets.randbelow(PRIME) if self.seed is None else self.seed
            options = {**options, "seed": drawn}
        return super().__call__(model, source_ids, max_length, **options)

    def begin(
        self, model: SearchModel, inputs: dict[str, Any]
    ) -> tuple[Any, LoopInputs, Hypotheses]:
        """Does the same as in `Search`, with random numbers. All samples run in the first step."""
        memory, *state = super().begin(model, inputs)
        source = _source_integers(inputs["source"])
        return memory, *start_draws(source, inputs["seed"], self.num_samples, *state)

    def choose(
        self, position: Tensor, log_probs: Scores, loop_inputs: LoopInputs
    ) -> tuple[Tensor, Tensor]:
        """Draws the next tokens, int32 (B, W); returns them and their log-probabilities."""
        options = loop_inputs.options
        token, log_prob = draw(
            *self._kept(position, log_probs, loop_inputs),
            tf.gather(loop_inputs.noise, position),
            options.get("temperature", self.temperature),
            options.get("top_p", self.top_p),
        )
        return tf.cast(token[..., 0], tf.int32), log_prob[..., 0]

    def _kept(
        self, position: Tensor, log_probs: Scores, loop_inputs: LoopInputs
    ) -> tuple[Tensor, Tensor | None]:
        """Returns log-probabilities (B, W, C) and ids to draw from; no ids for all in order."""
        forbidden, options = self._forbidden(position, loop_inputs), loop_inputs.options
        top_k, top_p = (options.get(name, getattr(self, name)) for name in ("top_k", "top_p"))
        if self.top_k:
            values, ids = log_probs.top(self.top_k, forbidden)
            return _best(values, top_k), ids
        log_probs, size = Scores(log_probs.dense), log_probs.vocab_size
        every = forbid(log_probs.values, log_probs.column_ids, forbidden)
        if self.top_p == 1 and not {"top_k", "top_p"} & set(options):
            return every, None
        values, ids = log_probs.top(size, forbidden)
        if "top_k" in options:
            values = _best(values, tf.where(top_k > 0, top_k, size))
        if self.top_p == 1:  # without a limit the same random number draws the same token
            limited = tf.logical_or(top_k > 0, top_p < 1)
            values = select(limited, values, every)
            ids = tf.where(limited, ids, np.arange(size))
        return values, ids

    def _result(self, hypotheses: Hypotheses, loop_inputs: LoopInputs) -> SearchResult:
        scores, order = tf.math.top_k(hypotheses.scores, self.num_samples)  # (B, W)
        records = {
            name: tf.gather(record, order, batch_dims=1)
            for name, record in hypotheses.records.items()
        }
        return super()._result(hypotheses._replace(scores=scores, **records), loop_inputs)


def _best(values: Tensor, count: Tensor | int) -> Tensor:
    """Sets sorted log-probabilities to -inf after the first `count` allowed ones."""
    rank = tf.cumsum(tf.cast(values > -np.inf, tf.int32), axis=-1)  # from 1
    return tf.where(rank > count, -np.inf, values)

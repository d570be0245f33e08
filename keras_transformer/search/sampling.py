"""Greedy search and sampling: hypotheses that do not compete with each other.

Shapes: B batch, W samples of a sentence, S source length, Q prefix length, T generated length,
V vocabulary, C candidates.
"""

import abc
import numbers
import secrets
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.decoding import SearchModel
from keras_transformer.search.base import Search, SearchResult
from keras_transformer.search.inputs import Source, check_number, integer_ids, read_inputs
from keras_transformer.search.loop import Hypotheses, Plan, given_at
from keras_transformer.search.ranking import ListedScores, forbid, select, top_candidates
from keras_transformer.types import Tensor


class IndependentSearch(Search):
    """A search in which each hypothesis goes on alone until it ends."""

    @abc.abstractmethod
    def choose(
        self, position: Tensor, log_probs: Tensor | ListedScores, plan: Plan
    ) -> tuple[Tensor, Tensor]:
        """Returns the next tokens, int32 (B, W), and their log-probabilities, (B, W)."""

    def advance(
        self,
        position: Tensor,
        log_probs: Tensor | ListedScores,
        hypotheses: Hypotheses,
        plan: Plan,
    ) -> tuple[Hypotheses, None]:
        """One step of all hypotheses; the loop of all searches calls it."""
        token, log_prob = self.choose(position, log_probs, plan)  # (B, W)
        if plan.given:
            given, given_log_prob = given_at(position, log_probs, plan)
            is_given = given > 0
            token = tf.where(is_given, given, token)
            log_prob = select(is_given, given_log_prob, log_prob)
        total = hypotheses.running + log_prob
        ends = self._ends(token, plan.count(position), plan)
        written = token * tf.cast(hypotheses.running > -np.inf, tf.int32)
        hypotheses = Hypotheses(
            ids=token,
            running=tf.where(ends, -np.inf, total),
            scores=tf.maximum(hypotheses.scores, tf.where(ends, total, -np.inf)),
            history=tf.concat([hypotheses.history, tf.expand_dims(written, 2)], axis=2),
        )
        return hypotheses, None


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class GreedySearch(IndependentSearch):
    """Greedy search: the most likely token at every step, one hypothesis for each sentence.

    The fastest search. It equals a beam search of width 1.

    The padding token (0) and the begin token (2) are never generated. They keep their share of the
    probability: scores are sums of the model's own log-probabilities, as its forward pass gives
    them.

    Args:
        min_length: int, the least number of generated tokens, end token included. The end token is
            forbidden before. Defaults to 0.
        allow_unknown: bool, whether the unknown token (1) may be generated. Defaults to `True`.

    Call arguments:
        model: a `Transformer`, a `CausalTransformer`, or any other
            `keras_transformer.search.SearchModel`.
        source_ids: integers (B, S), padded with 0: sources, or prompts for a `CausalTransformer`.
            Prompts are padded on the right.
        max_length: int, or integers (B,): the greatest number of generated tokens of a sentence,
            end token included. A hypothesis of this length is finished, with or without end token.
            Defaults to the number of source tokens of the sentence + 50 (section 6.1). It is never
            more than the model has positions. A sentence with a limit below 1 has no hypothesis:
            its ids are 0 and its score is -inf.
        target_prefix: integers (B, Q), padded with 0 on the right: the first tokens of every
            hypothesis. They count for ids, length and score. Defaults to none.

    Returns:
        `SearchResult`: ids, int32 (B, 1, T), and scores, float32 (B, 1), here sums of
        log-probabilities. Each row of ids holds the tokens after its own prompt. The tokens of the
        prompt count neither for length nor for score.

    Masking: 0 in `source_ids` is padding. A result depends neither on padding nor on the other
    sentences of the batch. A source of padding only is searched too; the model then attends to
    nothing. An empty prompt starts from token 0. An empty batch gives ids (0, 1, 0).

    In eager code the search is compiled once for each model and set of arguments, for all shapes.
    Inside a `tf.function` it becomes part of that function's graph.

    Raises:
        TypeError: if ids are not integers, if `model` lacks a method, or if an argument has the
            wrong type.
        ValueError: if an argument is out of range, if shapes do not fit, if a prompt or a prefix
            has padding before a token, or if Keras' backend is not TensorFlow. Inside a
            `tf.function` padding cannot be checked: other tokens are generated then.

    Example:

    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> source_ids = np.array([[5, 11, 23], [7, 13, 0]], "int32")
    >>> result = GreedySearch()(model, source_ids, max_length=10)
    >>> result.ids.shape[:2]
    TensorShape([2, 1])
    """

    width = 1

    def choose(
        self, position: Tensor, log_probs: Tensor | ListedScores, plan: Plan
    ) -> tuple[Tensor, Tensor]:
        """Returns the most likely tokens and their log-probabilities, each (B, 1)."""
        forbidden = self._forbidden(plan.count(position))
        best, ids = top_candidates(log_probs, 1, forbidden)  # (B, 1, 1)
        return tf.cast(ids[..., 0], tf.int32), best[..., 0]


# Random numbers are generated modulo this prime, by three rounds of x -> (x + constant)^5. Raising
# to the fifth power permutes the residues because 5 does not divide PRIME - 1. The constants are
# digits of pi.
PRIME = 2**31 - 1
ROUND_CONSTANTS = (314159265, 358979323, 846264338)


def _mix(x: Tensor) -> Tensor:
    """A fixed random-looking permutation of [0, PRIME), for int64 of at most 2^33.

    It uses additions, products and remainders only. ONNX's own random numbers do not depend on seed
    and position alone.
    """
    for constant in ROUND_CONSTANTS:
        x = (x + constant) % PRIME
        square = x * x % PRIME
        x = square * square % PRIME * x % PRIME
    return x


def uniform_noise(source: Tensor, seed: Tensor, samples: int, length: Tensor) -> Tensor:
    """Random numbers that depend only on seed, source, sample and position.

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


def _source_integers(source: Source) -> Tensor:
    """The source as integers (B, N), 0 for padding.

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
    is kept ("nucleus"). Each remaining token is drawn in proportion to its probability.

    A sample depends on the seed, on the tokens of its source and on its number. It does not depend
    on the other sentences, their order or the padding. Equal sentences get equal samples
    from one seed: pass `num_samples` to get several. Scores are sums of the model's own
    log-probabilities, before reshaping. The samples of a sentence are ordered by score and may
    repeat. The results of Keras, SavedModel and ONNX are the same.

    Args:
        temperature: number above 0; below 1 sharpens, above 1 flattens. Defaults to 1.0.
        top_k: int, 0 for no such limit. Defaults to 0.
        top_p: number in (0, 1], 1.0 for no such limit. Defaults to 1.0.
        seed: int in [0, 2^31 - 2]; `None` for a new one at each eager call. A traced graph
            (SavedModel, ONNX) holds the seed that was drawn while tracing, unless the call gets
            `seed` as a tensor.
        num_samples: int, W. Defaults to 1.
        min_length, allow_unknown: as in `GreedySearch`.

    Call arguments: as in `GreedySearch`, and
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

    def __post_init__(self) -> None:
        super().__post_init__()
        tiny = np.finfo("float32").tiny
        check_number(self.temperature, "temperature", numbers.Real, tiny)
        check_number(self.top_k, "top_k", numbers.Integral, 0)
        check_number(self.top_p, "top_p", numbers.Real, tiny, 1)
        check_number(self.num_samples, "num_samples", numbers.Integral, 1)
        if self.seed is not None:
            check_number(self.seed, "seed", numbers.Integral, 0, PRIME - 1)

    @property
    def width(self) -> int:
        """W, `num_samples`."""
        return self.num_samples

    def __call__(
        self,
        model: SearchModel,
        source_ids: Any,
        max_length: Any = None,
        *,
        target_prefix: Any = None,
        seed: Any = None,
    ) -> SearchResult:
        """Samples. See the class for arguments and result."""
        if seed is None:
            seed = secrets.randbelow(PRIME) if self.seed is None else self.seed
        if not tf.is_tensor(seed):
            check_number(seed, "seed", numbers.Integral, 0, PRIME - 1)
        inputs = read_inputs(model, source_ids, max_length, target_prefix, self.min_length)
        return self._search(model, {**inputs, "seed": integer_ids(seed, "seed", rank=0)})

    def begin(self, model: SearchModel, inputs: dict[str, Any]) -> tuple[Any, Plan, Hypotheses]:
        """Returns memory, plan and hypotheses before the first step. All samples are running."""
        memory, plan, hypotheses = super().begin(model, inputs)
        length = plan.limit + (plan.given.start_length if plan.given else 1)
        # At least 1: an empty batch has no maximum, and its only step reads a number too.
        longest = tf.reduce_max(tf.concat([tf.reshape(length, [-1]), [1]], axis=0))
        source = _source_integers(inputs["source"])
        noise = uniform_noise(source, inputs["seed"], self.num_samples, longest)
        running = tf.where(plan.limit > 0, np.zeros(self.num_samples, "float32"), -np.inf)
        return memory, plan._replace(noise=noise), hypotheses._replace(running=running)

    def choose(
        self, position: Tensor, log_probs: Tensor | ListedScores, plan: Plan
    ) -> tuple[Tensor, Tensor]:
        """Draws the next tokens, int32 (B, W); returns them and their log-probabilities."""
        values, ids = self._candidates(log_probs, plan.count(position))  # (B, W, C)
        # The peak is finite, so that the weights are 0, not NaN, if all tokens are forbidden.
        peak = tf.maximum(tf.reduce_max(values, axis=-1, keepdims=True), np.float32(-1e30))
        weights = tf.exp((values - peak) / self.temperature)
        cumulative = tf.cumsum(weights, axis=-1)
        total = cumulative[..., -1:]
        if self.top_p < 1:
            # Candidates are sorted: keep those that have less than `top_p` before them.
            kept = tf.cast(cumulative - weights < self.top_p * total, tf.float32)
            total = tf.reduce_max(cumulative * kept, axis=-1, keepdims=True)  # (B, W, 1)
        # Inverse of the cumulative distribution: one random number for each token.
        drawn = tf.expand_dims(tf.gather(plan.noise, position), 2) * total  # (B, W, 1)
        index = tf.reduce_sum(tf.cast(cumulative <= drawn, tf.int64), axis=-1, keepdims=True)
        index = tf.minimum(index, values.shape[-1] - 1)  # (B, W, 1)
        token = index if ids is None else tf.gather(ids, index, batch_dims=2)
        log_prob = tf.gather(values, index, batch_dims=2)
        return tf.cast(token[..., 0], tf.int32), log_prob[..., 0]

    def _candidates(
        self, log_probs: Tensor | ListedScores, count: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities and ids of the candidates; no ids if all tokens are, in order."""
        forbidden = self._forbidden(count)
        if self.top_k:
            values, ids = top_candidates(log_probs, self.top_k, forbidden)
            rank = tf.cumsum(tf.cast(values > -np.inf, tf.int32), axis=-1)  # from 1
            return tf.where(rank > self.top_k, -np.inf, values), ids
        log_probs = tf.convert_to_tensor(log_probs)
        if self.top_p < 1:
            return top_candidates(log_probs, log_probs.shape[-1], forbidden)
        return forbid(log_probs, np.arange(log_probs.shape[-1]), forbidden), None

    def _result(self, hypotheses: Hypotheses, plan: Plan) -> SearchResult:
        scores, order = tf.math.top_k(hypotheses.scores, self.num_samples)  # (B, W)
        history = tf.gather(hypotheses.history, order, batch_dims=1)
        return super()._result(hypotheses._replace(scores=scores, history=history), plan)

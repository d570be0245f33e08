"""Greedy search, beam search and sampling: how hypotheses advance by one token.

The loop around it, and what all three have in common, is in `decoding`.

Shapes: B sentences, W hypotheses of each, S source length, T generated length, V vocabulary,
N candidates.
"""

import numbers
import secrets
from dataclasses import dataclass, field

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.candidates import forbid, select, top_candidates, top_k
from keras_transformer.decoding import Search, SearchResult, State, check_number, integer_ids
from keras_transformer.text import PAD_ID

__all__ = ["BeamSearch", "GreedySearch", "Sampling", "SearchResult"]

# Random numbers are made modulo this prime by three rounds of x -> (x + constant)^5. Raising to
# the fifth power permutes the residues, for 5 does not divide PRIME - 1. Constants: digits of pi.
PRIME = 2**31 - 1
ROUND_CONSTANTS = (314159265, 358979323, 846264338)


def _length_penalty(count, alpha):
    """((5 + n) / 6)^alpha of Wu et al. 2016, equation 14. Counts below 1 are taken for 1."""
    count = tf.cast(tf.maximum(count, 1), tf.float32)
    return tf.pow((5.0 + count) / 6.0, alpha)


def _mix(x):
    """A fixed random-looking permutation of [0, PRIME), for int64 of at most 2^33.

    Additions, products and remainders only, for ONNX has no random numbers that a seed and a
    position determine.
    """
    for constant in ROUND_CONSTANTS:
        x = (x + constant) % PRIME
        square = x * x % PRIME
        x = square * square % PRIME * x % PRIME
    return x


def _uniform_noise(source_ids, seed, samples, length):
    """Random numbers that depend on seed, source tokens, sample and position, and on nothing else.

    Args:
        source_ids: int32 (B, S).
        seed: int32 scalar, at least 0.
        samples: int, W.
        length: int32 scalar, T.

    Returns:
        float32 (T, B, W), uniform on the multiples of 2^-23 in [0, 1).
    """
    mask = tf.cast(source_ids != PAD_ID, tf.int64)
    rank = tf.cumsum(mask, axis=1)  # places among the tokens that are no padding
    tokens = _mix(_mix(tf.cast(source_ids, tf.int64)) + rank) * mask  # (B, S)
    key = tf.reduce_sum(tokens, axis=1, keepdims=True) % PRIME  # (B, 1)
    key = _mix(_mix(tf.cast(seed, tf.int64)) + key)
    key = _mix(key + np.arange(samples))  # (B, W)
    position = tf.reshape(tf.cast(tf.range(length), tf.int64), [-1, 1, 1])
    noise = _mix(key + position)  # (T, B, W)
    return tf.cast(noise // 2**8, tf.float32) * 2.0**-23


class _Independent(Search):
    """Hypotheses that do not compete: each goes its own way until it ends."""

    def _advance(self, position, logits, state, plan):
        count = position + (2 - plan.start_length)
        token, log_prob, log_probs = self._choose(position, logits, count, plan)  # (B, W)
        if plan.forced is not None:
            given, given_log_prob = self._given(position, log_probs, count, plan)
            is_given = given > 0
            token = tf.where(is_given, given, token)
            log_prob = select(is_given, given_log_prob, log_prob)
        total = state.running + log_prob
        ends = self._ends(token, count, plan)
        written = token * tf.cast(state.running > -np.inf, tf.int32)
        return State(
            ids=token,
            running=tf.where(ends, -np.inf, total),
            scores=tf.maximum(state.scores, tf.where(ends, total, -np.inf)),
            history=tf.concat([state.history, tf.expand_dims(written, 2)], axis=2),
        ), None


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class GreedySearch(_Independent):
    """The likeliest token at every step: one hypothesis a sentence.

    The fastest search, and the same as a beam of width 1.

    Pad (0) and begin (2) are never generated. They keep their share of the probability: scores are
    sums of the model's own log-probabilities, the same that the full forward pass gives.

    Args:
        min_length: int, least number of generated tokens, end mark included; up to it the end mark
            is forbidden. Defaults to 0.
        allow_unknown: bool, whether the unknown token (1) may be generated. Defaults to `True`.

    Call arguments:
        model: a `Transformer`, a `CausalTransformer`, or any object with `start_ids`, `encode`,
            `initial_cache`, `decode_step` and `max_length`.
        source_ids: integers (B, S), padded with 0: sources, or prompts for a `CausalTransformer`.
        max_length: int, or integers (B,): most tokens generated a sentence, end mark included;
            a hypothesis that reaches it is finished, without end mark if it has none. Defaults to
            the sentence's own number of source tokens + 50 (section 6.1). Never more than the
            model has positions. A sentence for which this leaves no room, or whose limit is
            below 1, has no hypothesis: ids 0, score -inf.
        target_prefix: integers (B, Q), right-padded with 0: tokens that every hypothesis begins
            with. They are part of ids, length and score. Defaults to none.

    Returns:
        `SearchResult`: ids, int32 (B, 1, T), and scores, float32 (B, 1), here sums of
        log-probabilities. Where prompts differ in length, each row of ids holds what comes after
        its own prompt; tokens of the prompt count neither for length nor for score.

    Masking: 0 in `source_ids` is padding; a result does not depend on it, nor on the other
    sentences of the batch. A source that is all padding is searched as any other (the model
    attends to nothing); an empty prompt starts from token 0. An empty batch gives ids (0, 1, 0).

    In eager code the search is compiled once a model and set of arguments, for all shapes. Inside a
    `tf.function` it becomes part of that function's graph.

    Raises:
        TypeError: if ids are no integers, or `model` cannot decode step by step, or an
            argument has the wrong type.
        ValueError: if an argument is out of range, shapes do not fit, or Keras' backend is not
            TensorFlow.

    Example:

    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> source_ids = np.array([[5, 11, 23], [7, 13, 0]], "int32")
    >>> result = GreedySearch()(model, source_ids, max_length=10)
    >>> result.ids.shape[:2]
    TensorShape([2, 1])
    """

    _width = _distinct = _history_rows = 1

    def _choose(self, position, logits, count, plan):
        best, ids, log_probs = top_candidates(logits, 1, self._forbidden(count))  # (B, 1, 1)
        return tf.cast(ids[..., 0], tf.int32), best[..., 0], log_probs


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class BeamSearch(Search):
    """Beam search: the W best hypotheses found while W running ones are kept at every step.

    Section 6.1 of the paper, with the length penalty of Wu et al. 2016: a finished hypothesis Y of
    n tokens (end mark included) scores log P(Y|X) / ((5 + n) / 6)^alpha.

    At each step the best 2W extensions of the running hypotheses are ranked. Those that end among
    the first W are finished and never change again; the best W that go on are the running ones of
    the next step. The W best finished ones are returned.

    A sentence is over, whatever the rest of the batch does,
    - with `early_stop` (default) as soon as W hypotheses have finished, as in most toolkits;
    - without it when no running hypothesis can still beat the worst of W finished ones. As
      log-probabilities are at most 0 and the penalty grows with length, a descendant scores at
      most log P(so far) / ((5 + max_length) / 6)^alpha. This changes no result, but with
      alpha > 0 the bound is loose: most searches go on to `max_length`, and hypotheses that
      repeat themselves until then can win.

    Args:
        beam_width: int, W. Defaults to 4.
        length_penalty: number, alpha >= 0; 0 compares plain sums, larger ones favour longer
            hypotheses. Defaults to 0.6.
        early_stop: bool, see above. Defaults to `True`.
        min_length, allow_unknown: as in `GreedySearch`.

    Call arguments: those of `GreedySearch`.

    Returns:
        `SearchResult`: ids, int32 (B, W, T), and scores, float32 (B, W), best first, no two
        hypotheses of a sentence equal.

    Example:

    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> source_ids = np.array([[5, 11, 23], [7, 13, 0]], "int32")
    >>> result = BeamSearch(beam_width=5, length_penalty=1.0)(model, source_ids, max_length=10)
    >>> result.scores.shape
    TensorShape([2, 5])
    """

    beam_width: int = 4
    length_penalty: float = 0.6
    early_stop: bool = field(default=True, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        check_number(self.beam_width, "beam_width", numbers.Integral, 1)
        check_number(self.length_penalty, "length_penalty", numbers.Real, 0)
        if not isinstance(self.early_stop, bool):
            raise TypeError(f"early_stop must be True or False, got {self.early_stop!r}.")

    _distinct = 1  # hypotheses that differ before the first step
    _width = property(lambda self: self.beam_width)
    _history_rows = property(lambda self: 2 * self.beam_width)  # running, then finished ones

    def _advance(self, position, logits, state, plan):
        width = self.beam_width
        count = position + (2 - plan.start_length)
        parent, token, total = self._extend(position, logits, count, state, plan)  # (B, 2W)
        ends = self._ends(token, count, plan)
        # Finished: those that end among the best W, and those kept so far.
        penalty = _length_penalty(count, self.length_penalty)
        ended = tf.logical_and(ends, np.arange(total.shape[1]) < width)
        ended = tf.where(ended, total / penalty, -np.inf)
        scores, kept = top_k(tf.concat([state.scores, ended], axis=1), width)  # (B, W)
        # Running: the best W of the others. At most W of 2W end, so there are enough.
        running, going = top_k(tf.where(ends, -np.inf, total), width)  # (B, W)
        running = tf.where(self._done(scores, running, plan), -np.inf, running)

        # Where each row of the new history (running, then finished) comes from, and its token.
        own = tf.zeros_like(plan.limit, tf.int64) + np.arange(width, 2 * width)  # (B, W)
        source = tf.concat([own, parent], axis=1)  # (B, 3W)
        tokens = tf.concat([tf.zeros_like(own), token], axis=1)  # (B, 3W)
        chosen = tf.concat([width + going, kept], axis=1)  # (B, 2W)
        source = tf.gather(source, chosen, batch_dims=1)  # (B, 2W)
        tokens = tf.cast(tf.gather(tokens, chosen, batch_dims=1), tf.int32)  # (B, 2W)
        history = tf.gather(state.history, source, batch_dims=1)
        state = State(
            ids=tokens[:, :width],
            running=running,
            scores=scores,
            history=tf.concat([history, tf.expand_dims(tokens, 2)], axis=2),  # (B, 2W, t + 1)
        )
        return state, source[:, :width]

    def _extend(self, position, logits, count, state, plan):
        """The best 2W one-token extensions of all running hypotheses of a sentence.

        2W, for at most W of them end: each hypothesis has one end mark.

        Returns:
            Parent, token and sum of log-probabilities, each (B, 2W), best first.
        """
        width = self.beam_width
        log_probs, ids, everything = top_candidates(logits, width + 1, self._forbidden(count))
        size = ids.shape[-1]  # N
        if plan.forced is not None:
            given, given_log_probs = self._given(position, everything, count, plan)
            given = tf.cast(tf.expand_dims(given, 2), ids.dtype)  # (B, 1, 1)
            is_given = given > 0
            # One candidate only: the given token.
            only = tf.where(np.arange(size) < 1, tf.expand_dims(given_log_probs, 2), -np.inf)
            log_probs = select(is_given, only, log_probs)
            ids = tf.where(is_given, given, ids)
        total = tf.reshape(tf.expand_dims(state.running, 2) + log_probs, [-1, width * size])
        total, index = top_k(total, min(2 * width, width * size))  # (B, 2W)
        token = tf.gather(tf.reshape(ids, [-1, width * size]), index, batch_dims=1)
        return index // size, token, total

    def _done(self, scores, running, plan):
        """Sentences whose search is over, (B, 1)."""
        worst = scores[:, -1:]
        if self.early_stop:
            return worst > -np.inf
        # Log-probabilities are <= 0 and the penalty grows with length: no descendant of a running
        # hypothesis can score better than its sum now over the penalty of the longest one.
        best = running[:, :1] / _length_penalty(plan.limit, self.length_penalty)
        return worst >= best


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class Sampling(_Independent):
    """Random tokens from the model's distribution, reshaped by temperature, top-k and top-p.

    In this order, as is customary: logits are divided by `temperature`; all but the `top_k`
    likeliest allowed tokens are dropped; of these only the smallest set that holds a share `top_p`
    of the probability is kept ("nucleus"). What is left is drawn from by its share.

    A sample depends on the seed, on the tokens of its own source and on its number, not on the
    other sentences, their order or the padding. Two equal sentences with one seed therefore get
    equal samples: ask for `num_samples` to get several. Scores are sums of the model's own
    log-probabilities, before reshaping; samples of a sentence are ordered by them and may repeat.

    Args:
        temperature: number above 0; below 1 sharpens, above 1 flattens. Defaults to 1.0.
        top_k: int, 0 for no such limit. Defaults to 0.
        top_p: number in (0, 1], 1.0 for no such limit. Defaults to 1.0.
        seed: int in [0, 2^31 - 2]; `None` for a new one at each eager call. A traced graph
            (SavedModel, ONNX) holds the one that was drawn while tracing, unless `seed` is given
            as a tensor in the call.
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
        # One 0 more, for an empty batch has no maximum.
        longest = tf.reduce_max(tf.concat([tf.reshape(length, [-1]), [0]], axis=0))
        return _uniform_noise(options["source_ids"], options["seed"], self.num_samples, longest)

    def _choose(self, position, logits, count, plan):
        log_probs, ids, everything = self._candidates(logits, count)  # (B, W, N)
        # A finite peak, so that tokens that are all forbidden give weights 0, not NaN.
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

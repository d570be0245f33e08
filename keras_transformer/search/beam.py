"""Beam search (section 6.1 of the paper).

Shapes: B batch, W beam width, T generated length, V vocabulary, C next tokens of a hypothesis, K
extensions that are kept.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.search.base import Search
from keras_transformer.search.loop import Hypotheses, LoopInputs, given_at
from keras_transformer.search.scores import Forbidden, Scores, select, top_k
from keras_transformer.types import Tensor


class Extensions(NamedTuple):
    """Hypotheses that are longer by one token, best first.

    Attributes:
        parent: int64 (B, K), the hypothesis that each of them continues.
        token: int64 (B, K).
        total: float32 (B, K), sums of log-probabilities; -inf if there is no such hypothesis.
        log_prob: float32 (B, K), the log-probability of the token.
        more: further tensors (B, K) that a subclass ranks by.
    """

    parent: Tensor
    token: Tensor
    total: Tensor
    log_prob: Tensor
    more: tuple[Tensor, ...] = ()


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class BeamSearch(Search):
    """Beam search: every step keeps the W best running hypotheses.

    Section 6.1 of the paper, with the length penalty of Wu et al. 2016: a finished hypothesis Y of
    n tokens (end token included) scores log P(Y|X) / ((5 + n) / 6)^alpha.

    Each step ranks the best 2W extensions of the running hypotheses. Extensions that end and rank
    among the first W become finished hypotheses, which never change again. The best W of the other
    extensions run in the next step. The search returns the W best finished hypotheses.

    A sentence finishes independently of the rest of its batch:
    - with `early_stop` (default) as soon as W hypotheses have finished and none that runs has a
      better score. Very sure models, such as models of characters, finish W bad hypotheses early;
    - without it when no running hypothesis can still beat the worst of W finished ones. Because
      log-probabilities are at most 0 and the length divisor grows with length, no continuation
      scores above log P(so far) / ((5 + max_length) / 6)^alpha. Stopping there changes no result.
      With alpha > 0 the bound is loose: most searches go on to `max_length`, and hypotheses that
      repeat themselves until then can win.

    Args:
        beam_width: int, W. Defaults to 4.
        length_penalty: number, alpha >= 0, the exponent of `length_divisor`. 0 compares plain sums;
            larger numbers favour longer hypotheses. Defaults to 0.6.
        early_stop: bool, see above. Defaults to `True`.
        min_length, allow_unknown, constraints, token_scores, alignments: as in
            `GreedySearch`. A constraint may need a subclass, which is made instead.

    Call arguments: see `__call__`.

    Returns:
        `SearchResult`: ids, int32 (B, W, T), and scores, float32 (B, W), best first. No two
        hypotheses of a sentence are equal.

    Example:

    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> source_ids = np.array([[5, 11, 23], [7, 13, 0]], "int32")
    >>> result = BeamSearch(beam_width=5, length_penalty=1.0)(model, source_ids, max_length=10)
    >>> result.scores.shape
    TensorShape([2, 5])
    """

    options: ClassVar[tuple[str, ...]] = (*Search.options, "beam_width", "length_penalty")

    beam_width: int = 4
    length_penalty: float = 0.6
    early_stop: bool = field(default=True, kw_only=True)

    @property
    def free_options(self) -> set[str]:
        """See `Search.free_options`."""
        return super().free_options | {"length_penalty"}

    @property
    def width(self) -> int:
        """W, `beam_width`."""
        return self.beam_width

    @property
    def history_rows(self) -> int:
        """Running hypotheses, then finished ones: 2W rows."""
        return 2 * self.beam_width

    def length_divisor(self, count: Any, length_penalty: Any = None) -> Any:
        """Returns ((5 + n) / 6)^alpha (Wu et al. 2016, equation 14)."""
        penalty = self.length_penalty if length_penalty is None else length_penalty
        return ((5.0 + count) / 6.0) ** penalty

    def advance(
        self,
        position: Tensor,
        log_probs: Scores,
        hypotheses: Hypotheses,
        loop_inputs: LoopInputs,
    ) -> tuple[Hypotheses, Tensor]:
        """Adds one token to every hypothesis. See `StepSearch`."""
        width = self.beam_width
        count = loop_inputs.count(position)
        new = self._extend(position, log_probs, hypotheses, loop_inputs)  # (B, K)
        ends = self._ends(new.token, count, loop_inputs)
        place, running, running_index = self._ranked(new, ends)

        # 1. Finish: extensions that end among the best W compete with the finished hypotheses.
        new_scores = self._scores(new.total, count, loop_inputs)
        beam_width = loop_inputs.options.get("beam_width", width)
        within = tf.less(place, beam_width)
        finishes = tf.logical_and(ends, within)
        new_scores = tf.where(finishes, new_scores, -np.inf)
        old_and_new = tf.concat([hypotheses.scores, new_scores], axis=1)  # (B, W + K)
        scores, finished_index = top_k(old_and_new, width)  # (B, W)

        # 2. Keep running: the best W of the other extensions. Below the length limit at most W of
        # 2W end, so W remain.
        if "beam_width" in loop_inputs.options:
            beyond = tf.greater_equal(np.arange(width, dtype=np.int32), beam_width)
            scores, running = (tf.where(beyond, -np.inf, part) for part in (scores, running))
        running = tf.where(self._done(scores, running, count, loop_inputs), -np.inf, running)

        # 3. Next history: choose from W finished hypotheses and K extensions.
        zeros = tf.zeros_like(loop_inputs.limit, tf.int64)  # (B, 1)
        old_finished_rows = zeros + np.arange(width, 2 * width)  # (B, W)
        rows = tf.concat([old_finished_rows, new.parent], axis=1)  # (B, W + K)
        tokens = tf.concat([tf.zeros_like(old_finished_rows), new.token], axis=1)
        chosen = tf.concat([width + running_index, finished_index], axis=1)  # (B, 2W)
        rows = tf.gather(rows, chosen, batch_dims=1)  # (B, 2W)
        tokens = tf.cast(tf.gather(tokens, chosen, batch_dims=1), tf.int32)  # (B, 2W)
        log_prob = None
        if self.token_scores:
            log_prob = tf.pad(new.log_prob, [[0, 0], [width, 0]])  # (B, W + K)
            log_prob = tf.gather(log_prob, chosen, batch_dims=1)  # (B, 2W)
        hypotheses = hypotheses.extended(tokens, log_prob, rows)._replace(
            ids=tokens[:, :width], running=running, scores=scores
        )
        return hypotheses, rows[:, :width]

    def _extend(
        self,
        position: Tensor,
        log_probs: Scores,
        hypotheses: Hypotheses,
        loop_inputs: LoopInputs,
    ) -> Extensions:
        """Finds the best 2W extensions of all running hypotheses of a sentence by one token.

        At most W of 2W end, because the end token gives one extension of each hypothesis.
        """
        forbidden = self._forbidden(position, loop_inputs)
        values, ids, _ = self._next_tokens(position, log_probs, forbidden, loop_inputs)
        size = ids.shape[-1]  # C
        most = min(2 * self.beam_width, self.beam_width * size)
        return self._best(hypotheses, size, most, values, ids)

    def _next_tokens(
        self, position: Tensor, log_probs: Scores, forbidden: Forbidden, loop_inputs: LoopInputs
    ) -> tuple[Tensor, Tensor, Tensor | bool]:
        """Returns the next tokens that extend each hypothesis: given tokens, or the likeliest ones.

        Returns:
            Log-probabilities and ids, (B, W, C), and whether the token is given, (B, 1, 1).
        """
        values, ids = self._choose(position, log_probs, forbidden, loop_inputs)
        if not loop_inputs.given:
            return values, ids, False
        given, given_log_probs = given_at(position, log_probs, loop_inputs)
        given = tf.cast(tf.expand_dims(given, 2), ids.dtype)  # (B, 1, 1)
        is_given = given > 0
        # The given token is the only one.
        is_first = np.arange(ids.shape[-1]) < 1
        only = tf.where(is_first, tf.expand_dims(given_log_probs, 2), -np.inf)
        return select(is_given, only, values), tf.where(is_given, given, ids), is_given

    def _choose(
        self, position: Tensor, log_probs: Scores, forbidden: Forbidden, loop_inputs: LoopInputs
    ) -> tuple[Tensor, Tensor]:
        """Returns log-probabilities and ids of each hypothesis's best next tokens, (B, W, C)."""
        return log_probs.top(self.beam_width + 1, forbidden)

    def _best(
        self, hypotheses: Hypotheses, size: Tensor | int, most: Tensor | int, *tokens: Tensor
    ) -> Extensions:
        """Returns the `most` best extensions of the hypotheses of each sentence.

        Args:
            hypotheses: `Hypotheses`.
            size: C.
            most: K.
            *tokens: log-probabilities and ids of the next tokens, and further tensors (B, W, C).
        """
        shape = [-1, self.beam_width * size]
        total = tf.reshape(tf.expand_dims(hypotheses.running, 2) + tokens[0], shape)
        total, index = top_k(total, most)  # (B, K)
        log_prob, ids, *more = (
            tf.gather(tf.reshape(each, shape), index, batch_dims=1) for each in tokens
        )
        return Extensions(index // size, ids, total, log_prob, tuple(more))

    def _ranked(self, new: Extensions, ends: Tensor) -> tuple[Any, Tensor, Tensor]:
        """Ranks the extensions; `ends` is whether each finishes its hypothesis, (B, K).

        Returns:
            The number of better ones, (K,) or (B, K); and totals and indices of the best W that do
            not end, both (B, W).
        """
        place = np.arange(new.total.shape[1], dtype=np.int32)
        return place, *top_k(tf.where(ends, -np.inf, new.total), self.beam_width)

    def _done(
        self, scores: Tensor, running: Tensor, count: Tensor, loop_inputs: LoopInputs
    ) -> Tensor:
        """Returns whether the search of each sentence has finished, (B, 1).

        `running` has the totals of the running hypotheses, (B, W), the best one first.
        """
        last = loop_inputs.options.get("beam_width", self.beam_width) - 1
        worst = tf.gather(scores, [last], axis=1)  # (B, 1)
        best = running[:, :1]
        if not self.early_stop:
            # No continuation scores above the sum so far over the greatest length divisor.
            best = self._scores(best, loop_inputs.limit, loop_inputs)
            return worst >= best
        is_best = scores[:, :1] >= self._scores(best, count, loop_inputs)
        return tf.logical_and(worst > -np.inf, is_best)

    def _scores(self, total: Tensor, count: Tensor, loop_inputs: LoopInputs) -> Tensor:
        """Divides sums of log-probabilities by the length divisor.

        `count` is below 1 within a prompt; it then counts as 1.
        """
        if loop_inputs.given:
            count = tf.maximum(count, 1)
        count = tf.cast(count, tf.float32)
        return total / self.length_divisor(count, loop_inputs.options.get("length_penalty"))

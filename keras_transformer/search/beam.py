"""Beam search (section 6.1 of the paper).

Shapes: B batch, W beam width, T generated length, V vocabulary, C candidates of a step, K
extensions that are kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.call_options import check_option
from keras_transformer.search.base import Search
from keras_transformer.search.inputs import check_flag
from keras_transformer.search.loop import Hypotheses, LoopInputs, given_at
from keras_transformer.search.ranking import (
    Forbidden,
    ListedScores,
    select,
    top_candidates,
    top_k,
)
from keras_transformer.search.terms import FollowedTerms, Terms, by_bank
from keras_transformer.special_ids import END_ID, PAD_ID
from keras_transformer.types import Tensor


class Extensions(NamedTuple):
    """Hypotheses that are longer by one token, best first.

    Attributes:
        parent: int64 (B, K), the hypothesis that each of them continues.
        token: int64 (B, K).
        total: float32 (B, K), sums of log-probabilities; -inf if there is no such hypothesis.
        log_prob: float32 (B, K), the log-probability of the token; `None` without `token_scores`.
        banks: missing tokens of terms and their states, both (B, K), see `by_bank`; empty without
            `Terms`.
    """

    parent: Tensor
    token: Tensor
    total: Tensor
    log_prob: Tensor | None = None
    banks: Sequence[Tensor] = ()


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
      better score. Very sure models, such as models of characters, finish W bad hypotheses early.
      With `Terms` W hypotheses are enough;
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
            `GreedySearch`. With the constraint `Terms`, the W best are chosen from banks.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_option("beam_width", self.beam_width)
        check_option("length_penalty", self.length_penalty)
        check_flag(self.early_stop, "early_stop")

    @property
    def free_options(self) -> set[str]:
        """See `Search.free_options`."""
        return super().free_options | {"length_penalty"}

    @property
    def width(self) -> int:
        """W, `beam_width`."""
        return self.beam_width

    @property
    def _terms(self) -> int | None:
        """The index of `Terms` among the constraints, or `None`."""
        places = (i for i, one in enumerate(self.constraints) if isinstance(one, Terms))
        return next(places, None)

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
        log_probs: Tensor | ListedScores,
        hypotheses: Hypotheses,
        loop_inputs: LoopInputs,
    ) -> tuple[Hypotheses, Tensor]:
        """Adds one token to every hypothesis. See `StepSearch`."""
        width = self.beam_width
        count = loop_inputs.count(position)
        parent, token, total, log_prob, banks = self._extend(
            position, log_probs, hypotheses, loop_inputs
        )  # (B, K)
        ends = self._ends(token, count, loop_inputs)
        going_on = tf.where(ends, -np.inf, total)
        if banks:
            place, order = by_bank(total, *banks, ends)
        else:
            place = np.arange(total.shape[1], dtype=np.int32)

        # 1. Finish: extensions that end among the best W compete with the finished hypotheses.
        new_scores = self._scores(total, count, loop_inputs)
        beam_width = loop_inputs.options.get("beam_width", width)
        within = tf.less(place, beam_width)
        finishes = tf.logical_and(ends, within)
        new_scores = tf.where(finishes, new_scores, -np.inf)
        old_and_new = tf.concat([hypotheses.scores, new_scores], axis=1)  # (B, W + K)
        scores, finished_index = top_k(old_and_new, width)  # (B, W)

        # 2. Keep running: the best W of the other extensions. Below the length limit at most W of
        # 2W end, so W remain.
        if banks:
            _, running_index = top_k(order, width)  # (B, W)
            running = tf.gather(going_on, running_index, batch_dims=1)
        else:
            running, running_index = top_k(going_on, width)  # (B, W)
        if "beam_width" in loop_inputs.options:
            beyond = tf.greater_equal(np.arange(width, dtype=np.int32), beam_width)
            scores, running = (tf.where(beyond, -np.inf, part) for part in (scores, running))
        running = tf.where(self._done(scores, running, count, loop_inputs), -np.inf, running)

        # 3. Next history: choose from W finished hypotheses and K extensions.
        zeros = tf.zeros_like(loop_inputs.limit, tf.int64)  # (B, 1)
        old_finished_rows = zeros + np.arange(width, 2 * width)  # (B, W)
        candidate_rows = tf.concat([old_finished_rows, parent], axis=1)  # (B, W + K)
        candidate_tokens = tf.concat([tf.zeros_like(old_finished_rows), token], axis=1)
        chosen = tf.concat([width + running_index, finished_index], axis=1)  # (B, 2W)
        source_rows = tf.gather(candidate_rows, chosen, batch_dims=1)  # (B, 2W)
        tokens = tf.gather(candidate_tokens, chosen, batch_dims=1)  # (B, 2W)
        tokens = tf.cast(tokens, tf.int32)
        if self.token_scores:
            log_prob = tf.pad(log_prob, [[0, 0], [width, 0]])  # (B, W + K)
            log_prob = tf.gather(log_prob, chosen, batch_dims=1)  # (B, 2W)
        hypotheses = hypotheses.extended(tokens, log_prob, source_rows)._replace(
            ids=tokens[:, :width], running=running, scores=scores
        )
        return hypotheses, source_rows[:, :width]

    def _extend(
        self,
        position: Tensor,
        log_probs: Tensor | ListedScores,
        hypotheses: Hypotheses,
        loop_inputs: LoopInputs,
    ) -> Extensions:
        """Finds the best 2W extensions of all running hypotheses of a sentence by one token.

        At most W of 2W end, because the end token gives one extension of each hypothesis. With
        `Terms` it returns all candidates, because the best ones of each bank are needed.
        """
        width = self.beam_width
        forbidden = self._forbidden(position, loop_inputs)
        followed = self._followed_terms(hypotheses, loop_inputs)
        if followed:
            forbidden = [*forbidden, (END_ID, tf.expand_dims(followed.missing() > 0, 2))]
        values, ids = self._candidates(position, log_probs, forbidden, loop_inputs)
        size = ids.shape[-1]  # C
        is_given = False
        if loop_inputs.given:
            given, given_log_probs = given_at(position, log_probs, loop_inputs)
            given = tf.cast(tf.expand_dims(given, 2), ids.dtype)  # (B, 1, 1)
            is_given = given > 0
            # The given token is the only candidate.
            only = tf.where(np.arange(size) < 1, tf.expand_dims(given_log_probs, 2), -np.inf)
            values = select(is_given, only, values)
            ids = tf.where(is_given, given, ids)
        most, banks = min(2 * width, width * size), []
        if followed:
            left = tf.reshape(loop_inputs.limit - loop_inputs.count(position), [-1, 1, 1])
            values, ids, *banks = followed.candidates(
                values, ids, log_probs, forbidden, left, is_given
            )
            size = tf.shape(ids, tf.int64)[2]
            most = tf.cast(width * size, tf.int32)
        total = tf.reshape(tf.expand_dims(hypotheses.running, 2) + values, [-1, width * size])
        total, index = top_k(total, most)  # (B, K)

        def best(x: Tensor) -> Tensor:
            return tf.gather(tf.reshape(x, [-1, width * size]), index, batch_dims=1)

        return Extensions(
            index // size,
            best(ids),
            total,
            best(values) if self.token_scores else None,
            [best(x) for x in banks],
        )

    def _followed_terms(
        self, hypotheses: Hypotheses, loop_inputs: LoopInputs
    ) -> FollowedTerms | None:
        """Returns the terms and the state of the hypotheses; `None` without `Terms`."""
        if self._terms is None:
            return None
        known, state = loop_inputs.known[self._terms], hypotheses.constraint_states[self._terms]
        return FollowedTerms(known[:, tf.newaxis], state)

    def _candidates(
        self,
        position: Tensor,
        log_probs: Tensor | ListedScores,
        forbidden: Forbidden,
        loop_inputs: LoopInputs,
    ) -> tuple[Tensor, Tensor]:
        """Returns log-probabilities and ids of each hypothesis's best next tokens, (B, W, C)."""
        return top_candidates(log_probs, self.beam_width + 1, forbidden)

    def _done(
        self, scores: Tensor, running: Tensor, count: Tensor, loop_inputs: LoopInputs
    ) -> Tensor:
        """Returns whether the search of each sentence has finished, (B, 1)."""
        last = loop_inputs.options.get("beam_width", self.beam_width) - 1
        worst = tf.gather(scores, [last], axis=1)  # (B, 1)
        best = running[:, :1]
        if self._terms is not None:  # banks are not in the order of scores
            best = tf.reduce_max(running, axis=1, keepdims=True)
        if not self.early_stop:
            # No continuation scores above the sum so far over the greatest length divisor.
            best = self._scores(best, loop_inputs.limit, loop_inputs)
            return worst >= best
        is_best = scores[:, :1] >= self._scores(best, count, loop_inputs)
        if self._terms is not None:  # hypotheses without their terms often have better scores
            terms = loop_inputs.known[self._terms]
            is_best |= tf.reduce_any(terms != PAD_ID, axis=[1, 2])[:, tf.newaxis]
        return tf.logical_and(worst > -np.inf, is_best)

    def _scores(self, total: Tensor, count: Tensor, loop_inputs: LoopInputs) -> Tensor:
        """Divides sums of log-probabilities by the length divisor.

        `count` is below 1 within a prompt; it then counts as 1.
        """
        count = tf.cast(tf.maximum(count, 1), tf.float32)
        return total / self.length_divisor(count, loop_inputs.options.get("length_penalty"))

"""Beam search (section 6.1 of the paper).

Shapes: B batch, W beam width, S source length, T generated length, V vocabulary, C candidates.
"""

import numbers
from dataclasses import dataclass, field

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.search.base import Search
from keras_transformer.search.candidates import select, top_candidates, top_k
from keras_transformer.search.checks import check_flag, check_number
from keras_transformer.search.given import given_at
from keras_transformer.search.loop import State
from keras_transformer.special_ids import NUM_SPECIAL


def _length_penalty(count, alpha):
    """((5 + n) / 6)^alpha of Wu et al. 2016, equation 14. Counts below 1 count as 1."""
    count = tf.cast(tf.maximum(count, 1), tf.float32)
    return tf.pow((5.0 + count) / 6.0, alpha)


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class BeamSearch(Search):
    """Beam search: the W best hypotheses found while W running ones are kept at every step.

    Section 6.1 of the paper, with the length penalty of Wu et al. 2016: a finished hypothesis Y of
    n tokens (end token included) scores log P(Y|X) / ((5 + n) / 6)^alpha.

    Each step ranks the best 2W extensions of the running hypotheses. Those that end among the first
    W are finished and never change again. The best W of the others are running in the next step.
    The W best finished ones are returned.

    When a sentence is over does not depend on the rest of the batch:
    - with `early_stop` (default) as soon as W hypotheses have finished, as in most toolkits;
    - without it when no running hypothesis can still beat the worst of W finished ones. As
      log-probabilities are at most 0 and the length penalty grows with length, no continuation
      scores above log P(so far) / ((5 + max_length) / 6)^alpha. Stopping there changes no result.
      With alpha > 0 the bound is loose: most searches go on to `max_length`, and hypotheses that
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
        check_flag(self.early_stop, "early_stop")

    _distinct = 1  # hypotheses that differ before the first step
    _width = property(lambda self: self.beam_width)
    _history_rows = property(lambda self: 2 * self.beam_width)  # running, then finished ones
    _ranked = property(lambda self: NUM_SPECIAL + self.beam_width + 1)

    def _advance(self, position, logits, state, plan):
        width = self.beam_width
        count = plan.count(position)
        parent, token, total = self._extend(position, logits, count, state, plan)  # (B, 2W)
        ends = self._ends(token, count, plan)
        # Finished: those that end among the best W, and those that were finished before.
        penalty = _length_penalty(count, self.length_penalty)
        ended = tf.logical_and(ends, np.arange(total.shape[1]) < width)
        ended = tf.where(ended, total / penalty, -np.inf)
        scores, kept = top_k(tf.concat([state.scores, ended], axis=1), width)  # (B, W)
        # Running: the best W of the others. At most W of 2W end, so there are W others.
        running, going = top_k(tf.where(ends, -np.inf, total), width)  # (B, W)
        running = tf.where(self._done(scores, running, plan), -np.inf, running)

        # The row of the old history that each row of the new one continues, and its token.
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

        At most W of 2W end, for each hypothesis has one extension by the end token.

        Returns:
            Parent, token and sum of log-probabilities, each (B, 2W), best first.
        """
        width = self.beam_width
        log_probs, ids, everything = top_candidates(logits, width + 1, self._forbidden(count))
        size = ids.shape[-1]  # C
        if plan.given is not None:
            given, given_log_probs = given_at(position, everything, count, plan.given)
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
        # No continuation can score above the sum so far over the length penalty of the longest.
        best = running[:, :1] / _length_penalty(plan.limit, self.length_penalty)
        return worst >= best

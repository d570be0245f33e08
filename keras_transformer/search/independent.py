"""Hypotheses that do not compete: what greedy search and sampling share.

Shapes: B sentences, W hypotheses of each, T generated length, V vocabulary.
"""

import numpy as np
import tensorflow as tf

from keras_transformer.search.candidates import select
from keras_transformer.search.loop import Search, State


class IndependentSearch(Search):
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

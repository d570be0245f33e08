"""Hypotheses that do not compete: what greedy search and sampling share.

Shapes: B batch, W beam width, T generated length, V vocabulary.
"""

import numpy as np
import tensorflow as tf

from keras_transformer.search.base import Search
from keras_transformer.search.candidates import select
from keras_transformer.search.given import given_at
from keras_transformer.search.loop import State


class IndependentSearch(Search):
    """Hypotheses that do not compete: each goes on by itself until it ends.

    A subclass defines `_choose(position, logits, count, plan)`: the next tokens, int32 (B, W), and
    their log-probabilities, (B, W); and the log-probabilities of all tokens, (B, W, V).
    """

    def _advance(self, position, logits, state, plan):
        count = plan.count(position)
        token, log_prob, log_probs = self._choose(position, logits, count, plan)  # (B, W)
        if plan.given is not None:
            given, given_log_prob = given_at(position, log_probs, count, plan.given)
            is_given = given > 0
            token = tf.where(is_given, given, token)
            log_prob = select(is_given, given_log_prob, log_prob)
        total = state.running + log_prob
        ends = self._ends(token, count, plan)
        written = token * tf.cast(state.running > -np.inf, tf.int32)
        state = State(
            ids=token,
            running=tf.where(ends, -np.inf, total),
            scores=tf.maximum(state.scores, tf.where(ends, total, -np.inf)),
            history=tf.concat([state.history, tf.expand_dims(written, 2)], axis=2),
        )
        return state, None

"""Greedy search, and the base class that it shares with sampling.

Shapes: B batch, W hypotheses of a sentence, T generated length, V vocabulary.
"""

import abc
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.search.base import Search
from keras_transformer.search.loop import Hypotheses, LoopInputs, given_at
from keras_transformer.search.scores import Scores, select
from keras_transformer.special_ids import PAD_ID
from keras_transformer.types import Tensor


class IndependentSearch(Search):
    """A search whose hypotheses do not compete: each continues until it ends."""

    @abc.abstractmethod
    def choose(
        self, position: Tensor, log_probs: Scores, loop_inputs: LoopInputs
    ) -> tuple[Tensor, Tensor]:
        """Returns the next tokens, int32 (B, W), and their log-probabilities, (B, W)."""

    def advance(
        self,
        position: Tensor,
        log_probs: Scores,
        hypotheses: Hypotheses,
        loop_inputs: LoopInputs,
    ) -> tuple[Hypotheses, None]:
        """Adds one token to every hypothesis. See `StepSearch`."""
        token, log_prob = self.choose(position, log_probs, loop_inputs)  # (B, W)
        if loop_inputs.given:
            given, given_log_prob = given_at(position, log_probs, loop_inputs)
            is_given = given > 0
            token = tf.where(is_given, given, token)
            log_prob = select(is_given, given_log_prob, log_prob)
        total = hypotheses.running + log_prob
        ends = self._ends(token, loop_inputs.count(position), loop_inputs)
        written = tf.where(hypotheses.running > -np.inf, token, PAD_ID)
        hypotheses = hypotheses.extended(written, log_prob)._replace(
            ids=token,
            running=tf.where(ends, -np.inf, total),
            scores=tf.maximum(hypotheses.scores, tf.where(ends, total, -np.inf)),
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
            forbidden until then. Defaults to 0.
        allow_unknown: bool, whether the unknown token (1) may be generated. Defaults to `True`.
        constraints: sequence of `Constraint`, which bias or forbid next tokens. Defaults to none.
        token_scores: bool, whether the result has the log-probability of each token. Defaults to
            `False`.
        alignments: whether the result has the attention of each token to the source. `True` is the
            mean of all heads of the decoder's last layer. A sequence of pairs of layer and head,
            such as `[(-1, 0)]`, is the mean of these heads. Defaults to `False`.

    Call arguments: see `__call__`.

    Returns:
        `SearchResult`: ids, int32 (B, 1, T), and scores, float32 (B, 1), here sums of
        log-probabilities.

    Example:

    >>> model = Transformer(vocab_size=97, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> source_ids = np.array([[5, 11, 23], [7, 13, 0]], "int32")
    >>> result = GreedySearch()(model, source_ids, max_length=10)
    >>> result.ids.shape[:2]
    TensorShape([2, 1])
    """

    width = 1

    def choose(
        self, position: Tensor, log_probs: Scores, loop_inputs: LoopInputs
    ) -> tuple[Tensor, Tensor]:
        """Returns the most likely tokens and their log-probabilities, each (B, 1)."""
        best, ids = log_probs.top(1, self._forbidden(position, loop_inputs))  # (B, 1, 1)
        return tf.cast(ids[..., 0], tf.int32), best[..., 0]

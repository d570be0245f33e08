"""The rules of Whisper's decoder: times in order and in pairs, and suppressed tokens.

Shapes: B batch, W hypotheses, P start tokens, V vocabulary, t tokens so far.
"""

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.call_options import check_number
from keras_transformer.decoding import START_IDS
from keras_transformer.search.constraints import Past
from keras_transformer.search.rules import Rule
from keras_transformer.special_ids import END_ID
from keras_transformer.types import Tensor


@keras.saving.register_keras_serializable("keras_transformer")
@dataclass(frozen=True)
class TimestampRules(Rule):
    """Makes a speech model write text between times, as in OpenAI's decoder of Whisper.

    The tokens from `first_time` on stand for times. The output begins with a time. Times never
    decrease, and they come in pairs: the end of a segment, then the start of the next one. If all
    times together are more likely than each text token, the next token is a time. Scores are
    log-probabilities among the allowed tokens.

    A sentence whose start tokens hold `no_times` gets no times; suppressed tokens stay forbidden.
    The model must read `start_ids`, see `Transformer(reads_start=True)`.

    Args:
        first_time: int, the token of second 0. All larger ids are later times.
        no_times: int, the start token that asks for text without times.
        suppressed: sequence of ids that are never written. Defaults to none.
        suppressed_first: sequence of ids that are not written first. Defaults to none.
        latest_start: int, the largest first time, in steps of 0.02 s. Defaults to 50.

    Example:

    >>> ids = tokenizer.added_ids  # doctest: +SKIP
    >>> rules = TimestampRules(ids["<|0.00|>"], ids["<|notimestamps|>"])  # doctest: +SKIP
    >>> search = GreedySearch(constraints=[rules])  # doctest: +SKIP
    """

    takes_listed: ClassVar[bool] = False

    first_time: int
    no_times: int
    suppressed: Sequence[int] = ()
    suppressed_first: Sequence[int] = ()
    latest_start: int = 50

    def __post_init__(self) -> None:
        for name, least in (("first_time", END_ID + 1), ("no_times", END_ID + 1)):
            check_number(getattr(self, name), name, numbers.Integral, least)
        check_number(self.latest_start, "latest_start", numbers.Integral, 0)
        for name in ("suppressed", "suppressed_first"):
            object.__setattr__(self, name, tuple(map(int, getattr(self, name))))

    def read(self, source: Any, inputs: Any) -> Tensor:
        """Returns whether each sentence gets times, boolean (B, 1, 1).

        Raises:
            ValueError: the model does not read `start_ids`.
        """
        if not isinstance(source, dict) or START_IDS not in source:
            raise ValueError(
                f"TimestampRules needs the source input {START_IDS!r}, which this model does not "
                "read. Build the model with reads_start=True."
            )
        has_none = tf.reduce_any(source[START_IDS] == self.no_times, axis=1)
        return tf.logical_not(has_none)[:, tf.newaxis, tf.newaxis]

    def step(self, logits: Tensor, past: Past, state: Any, known: Tensor) -> tuple[Tensor, Any]:
        """Forbids suppressed tokens and, with times, all that break the rules."""
        ids = np.arange(logits.shape[-1])
        if self.first_time >= ids.size or self.no_times >= ids.size:
            raise ValueError(
                f"first_time={self.first_time} and no_times={self.no_times} must be ids of the "
                f"model, which has {ids.size}. Take them from the model's tokenizer."
            )
        is_time = ids >= self.first_time
        is_text = ~is_time & (ids != END_ID)
        written = past.count - 1 + tf.zeros_like(past.ids[:, :1])  # (B, 1)
        written = written[:, :, tf.newaxis]
        is_first = written == 0
        forbidden = tf.logical_or(
            np.isin(ids, (*self.suppressed, self.no_times)),
            tf.logical_and(is_first, np.isin(ids, self.suppressed_first)),
        )

        times = self._times(past.history, written)  # (B, W, t + 2)
        latest = tf.reduce_max(times, axis=2, keepdims=True)
        ended = times[:, :, -1:] > 0
        before = tf.logical_or(times[:, :, -2:-1] > 0, written < 2)
        is_open = tf.logical_and(ended, tf.logical_not(before))  # the next segment has no start
        lowest = latest + tf.cast(tf.logical_not(is_open), tf.int32)
        late = ids > self.first_time + self.latest_start
        broken = (
            tf.logical_and(tf.logical_and(ended, before), is_time),
            tf.logical_and(is_open, is_text),
            tf.logical_and(ids < lowest, is_time),
            tf.logical_and(is_first, ~is_time | late),
        )
        for rule in broken:
            forbidden = tf.logical_or(forbidden, tf.logical_and(known, rule))
        changed = tf.where(forbidden, -np.inf, logits)

        peak = tf.reduce_max(changed, axis=2, keepdims=True)
        share = tf.reduce_sum(tf.where(is_time, tf.exp(changed - peak), 0.0), axis=2, keepdims=True)
        text = tf.reduce_max(tf.where(is_time, -np.inf, changed), axis=2, keepdims=True)
        likely = tf.logical_and(known, share > tf.exp(text - peak))
        changed = tf.where(tf.logical_and(likely, ~is_time), -np.inf, changed)
        changed = tf.where(written >= 0, changed, logits)
        # The loop needs the static shape, which is lost with a history of unknown length.
        changed.set_shape(logits.shape)
        return changed, state

    def _times(self, history: Tensor, written: Tensor) -> Tensor:
        """Returns two zeros, then generated times at their places, else 0: int32 (B, W, t + 2)."""
        age = tf.shape(history)[2] - tf.range(tf.shape(history)[2])  # 1 is the newest token
        is_time = tf.logical_and(age <= written, history >= self.first_time)
        return tf.pad(history * tf.cast(is_time, tf.int32), [[0, 0], [0, 0], [2, 0]])

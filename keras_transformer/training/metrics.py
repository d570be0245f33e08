"""Token accuracy and perplexity, weighted by tokens and exact over batches and replicas.

Shapes: B batch, T target length, N = B T tokens, flattened; V vocabulary.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.training.losses import (
    flat_tokens,
    label_logits,
    log_normalizer,
    weighted_sum,
)
from keras_transformer.training.replicas import sum_over_replicas
from keras_transformer.types import Tensor


class _TokenMean(keras.metrics.Metric):
    """Computes the mean of a quantity over tokens."""

    def __init__(self, pad_id: int, name: str, dtype: str | None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.pad_id = pad_id
        # Float32 counts tokens up to 16.7 million, less than an epoch of WMT. JAX has no float64.
        exact = "float32" if keras.backend.backend() == "jax" else "float64"
        self.total = self.add_variable((), "zeros", dtype=exact, name="total")
        self.count = self.add_variable((), "zeros", dtype=exact, name="count")

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> None:
        labels, logits, weights = flat_tokens(y_true, y_pred, sample_weight, self.pad_id)
        total = weighted_sum(self._token_values(logits, labels), weights)
        self.total.assign_add(ops.cast(total, self.total.dtype))
        self.count.assign_add(ops.cast(ops.sum(weights), self.count.dtype))

    def _token_values(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Computes the quantity of each token: (N, V), (N,) -> (N,)."""
        raise NotImplementedError

    def result(self) -> Tensor:
        # Inside a step each replica sees its own part. Keras would average the replicas' ratios,
        # which is wrong if they have different numbers of tokens.
        total, count = sum_over_replicas([self.total.value, self.count.value])
        return ops.cast(ops.divide_no_nan(total, count), "float32")

    def get_config(self) -> dict[str, Any]:
        return {"pad_id": self.pad_id, "name": self.name, "dtype": self.dtype}


@keras.saving.register_keras_serializable("keras_transformer")
class TokenAccuracy(_TokenMean):
    """Computes the proportion of target tokens with the highest logit; padding does not count.

    The mean is over all tokens since the last reset. It does not depend on how sentences were
    batched or distributed over replicas. Without any token the result is 0. If several tokens share
    the highest logit, the first one is the guess, as in Keras' `SparseCategoricalAccuracy`.

    Args:
        pad_id: the label that marks padding. Defaults to 0; use -1 for classes and tags.
        name: defaults to "token_accuracy".
        dtype: Keras' metric dtype; counts are float64 where the backend has it.

    Call arguments:
        y_true: integer tensor of labels, (B, T), or (B,) for one label per row.
        y_pred: float tensor of logits, (B, T, V) or (B, V).
        sample_weight: float tensor (B,) or (B, T), or `None`.

    Masking: only `y_true != pad_id` counts; a Keras mask is ignored.

    Raises:
        ValueError: shapes that do not fit together.

    Example:

    >>> metric = TokenAccuracy()
    >>> metric.update_state([[1, 2, 0]], [[[0.0, 9, 0], [0, 9, 0], [9, 0, 0]]])
    >>> float(metric.result())  # one of two; the third is padding
    0.5
    """

    _direction = "up"  # Keras' callbacks read it: a higher value is better

    def __init__(
        self, pad_id: int = 0, name: str = "token_accuracy", dtype: str | None = None
    ) -> None:
        super().__init__(pad_id, name, dtype)

    def _token_values(self, logits: Tensor, labels: Tensor) -> Tensor:
        # `argmax` gives the same result, but takes several times as long on a CPU.
        of_label = label_logits(logits, labels)  # (N, 1)
        before = ops.arange(ops.shape(logits)[-1], dtype="int32") < labels[:, None]  # (N, V)
        is_guess = ops.where(before, logits < of_label, logits <= of_label)
        return ops.cast(ops.all(is_guess, axis=-1), "float32")


@keras.saving.register_keras_serializable("keras_transformer")
class Perplexity(_TokenMean):
    """Computes exp of the mean cross-entropy of the target tokens, without label smoothing.

    The mean is over all tokens since the last reset, as in `TokenAccuracy`. Inside a compiled
    training step it shares the pass over the vocabulary with `SequenceCrossentropy`. Without any
    token the result is 1.

    Args:
        pad_id: the label that marks padding. Defaults to 0; use -1 for classes and tags.
        name: defaults to "perplexity".
        dtype: Keras' metric dtype; sums are float64 where the backend has it.

    Call arguments:
        y_true: integer tensor of labels, (B, T), or (B,) for one label per row.
        y_pred: float tensor of logits, (B, T, V) or (B, V).
        sample_weight: float tensor (B,) or (B, T), or `None`.

    Masking: only `y_true != pad_id` counts; a Keras mask is ignored.

    Raises:
        ValueError: shapes that do not fit together.

    Example:

    >>> metric = Perplexity()
    >>> metric.update_state([[1, 2, 0]], keras.ops.zeros((1, 3, 4)))
    >>> round(float(metric.result()), 4)  # four tokens, equally likely
    4.0
    """

    _direction = "down"

    def __init__(self, pad_id: int = 0, name: str = "perplexity", dtype: str | None = None) -> None:
        super().__init__(pad_id, name, dtype)

    def _token_values(self, logits: Tensor, labels: Tensor) -> Tensor:
        return (log_normalizer(logits) - label_logits(logits, labels))[:, 0]  # (N,)

    def result(self) -> Tensor:
        return ops.exp(super().result())

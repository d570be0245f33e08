"""Losses that call a model again: R-Drop and distillation.

`Model.compute_loss` passes model and inputs to them. So they work with plain `compile`
and `fit`, on any number of replicas and with accumulated gradients.

Shapes: B batch, T target length, N = B T tokens, V vocabulary.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from keras_transformer.text.vocabularies import recorded_digests, refuse_other_tokenizers
from keras_transformer.training.losses import (
    LEAST_LOGIT,
    ReplicaLoss,
    SequenceCrossentropy,
    flat_tokens,
    token_divergence,
    weighted_sum,
)
from keras_transformer.training.replicas import mean_over_replicas
from keras_transformer.types import Tensor

# Model, inputs and `training` of the `Model.compute_loss` that is running, or `None`.
# Each replica's thread has its own.
_MODEL_CALL = contextvars.ContextVar("model_call", default=None)


class ModelLoss(ReplicaLoss):
    """Base class of losses that also need the model and its inputs.

    The loss of a batch is the result of `labels_loss` plus `more`. Only the models of this package
    add `more`. Other models would train with a part of the loss, so they are rejected.

    Args:
        loss: `SequenceCrossentropy` of the labels.
        name: name of the loss.
    """

    def __init__(self, loss: SequenceCrossentropy, name: str) -> None:
        super().__init__(name=name, dtype="float32")
        if not isinstance(loss, SequenceCrossentropy):
            raise TypeError(f"loss must be a SequenceCrossentropy, but {loss!r} was passed.")
        self.loss: SequenceCrossentropy = loss

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> Tensor:
        call = _MODEL_CALL.get()
        if call is None:
            name = type(self).__name__
            raise ValueError(
                f"{name} needs a model of this package, such as Transformer, TransformerEncoder or "
                f"CausalTransformer, and must be its only loss: model.compile(..., loss={name}()). "
                "Another model, or a list or dict of losses, would train with a part of it."
            )
        model, x, training = call
        more = self.more(model, x, y_true, y_pred, sample_weight, training)
        return self.labels_loss(y_true, y_pred, sample_weight) + more

    @contextlib.contextmanager
    def called_by_model(self, model: keras.Model, x: Any, training: bool) -> Iterator[None]:
        """Opens a context in which the loss knows the model that calls it and its inputs."""
        token = _MODEL_CALL.set((model, x, training))
        try:
            yield
        finally:
            _MODEL_CALL.reset(token)

    def labels_loss(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> Tensor:
        """Returns the term of the loss that needs no model: a scalar."""
        return self.loss(y_true, y_pred, sample_weight)

    def more(
        self,
        model: keras.Model,
        x: Any,
        y_true: Tensor,
        y_pred: Tensor,
        sample_weight: Tensor = None,
        training: bool = True,
    ) -> Tensor | float:
        """Returns the terms of the loss that need the model: a scalar.

        Args:
            model: the model that is trained.
            x: its inputs.
            y_true, y_pred, sample_weight: as in the call.
            training: whether this is a step of `fit`, not of `evaluate`.
        """
        raise NotImplementedError

    def batch_weight(self, y_true: Tensor, sample_weight: Tensor = None) -> Tensor:
        """Returns the divisor of this batch's mean: its number (or weight) of target tokens."""
        return self.loss.batch_weight(y_true, sample_weight)

    def get_config(self) -> dict[str, Any]:
        return {"loss": keras.saving.serialize_keras_object(self.loss), "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ModelLoss":
        loss = keras.saving.deserialize_keras_object(config["loss"])
        return cls(**{**config, "loss": loss})

    def _mean(self, losses: Tensor, weights: Tensor) -> Tensor:
        return mean_over_replicas(weighted_sum(losses, weights), ops.sum(weights))

    def _tokens(
        self, y_true: Tensor, logits: Tensor, sample_weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns flat logits (N, V), and weights (N,)."""
        return flat_tokens(y_true, logits, sample_weight, self.loss.pad_id)[1:]


@keras.saving.register_keras_serializable("keras_transformer")
class RDrop(ModelLoss):
    """Regularised dropout: makes two passes with different dropout agree (Liang et al. 2021).

    L = L_1 + L_2 + α / 2 (KL(P_1 || P_2) + KL(P_2 || P_1)) for each target token: section 2.1,
    equation 4, of "R-Drop" (arXiv 2106.14448). L_i is the cross-entropy of pass i and P_i its
    distribution. The mean is over all target tokens of the global batch. The paper uses α = 5 for
    translation.

    A step of `fit` calls the model twice and takes about twice as long; the reported loss includes
    both cross-entropies. `evaluate` computes the cross-entropy alone. Metrics read the first pass.

    The model must be of this package and have dropout.

    Args:
        loss: `SequenceCrossentropy`. Defaults to one without label smoothing.
        alpha: α, weight of the divergences. Defaults to 5.
        name: defaults to "r_drop".

    Call arguments:
        y_true: integer labels (B, T), or (B,) for one label per row.
        y_pred: logits (B, T, V) or (B, V).
        sample_weight: (B,) or (B, T), or `None`.

    Returns:
        Float32 scalar, the cross-entropy of one pass.

    Raises:
        TypeError: `loss` is not a `SequenceCrossentropy`.
        ValueError: `alpha` is negative, or the model is not of this package.

    Example:

    >>> model = kt.CausalTransformer(vocab_size=23, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> model.compile("adam", loss=kt.RDrop(kt.SequenceCrossentropy(0.1), alpha=5.0))
    """

    def __init__(
        self,
        loss: SequenceCrossentropy | None = None,
        alpha: float = 5.0,
        name: str = "r_drop",
    ) -> None:
        super().__init__(loss or SequenceCrossentropy(), name)
        if alpha < 0:
            raise ValueError(f"alpha must not be negative, but it is {alpha}. The paper uses 5.")
        self.alpha: float = alpha

    def more(
        self,
        model: keras.Model,
        x: Any,
        y_true: Tensor,
        y_pred: Tensor,
        sample_weight: Tensor = None,
        training: bool = True,
    ) -> Tensor | float:
        """Returns cross-entropy of a second pass and divergences; 0 in `evaluate`."""
        if not training:
            return 0.0
        second = model(x, training=True)
        (first_logits, weights), (second_logits, _) = (
            self._tokens(y_true, z, sample_weight) for z in (y_pred, second)
        )
        divergence = self._mean(token_divergence(first_logits, second_logits), weights)
        return self.loss(y_true, second, sample_weight) + self.alpha / 2 * divergence

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "alpha": self.alpha}


@keras.saving.register_keras_serializable("keras_transformer")
class Distillation(ModelLoss):
    """Trains on a teacher's distribution of each token (Kim and Rush 2016, section 3.1).

    L = (1 - w) L_CE + w KL(Q || P) for each target token, where P is the distribution of the model,
    Q of the teacher, and L_CE the cross-entropy of the labels. The gradient of KL(Q || P) is the
    gradient of the word-level loss -Σ Q log P of "Sequence-Level Knowledge Distillation" (arXiv
    1606.07947). KL is 0 if the model agrees. For the paper's sequence-level loss, train on the
    texts that `distil` writes.

    The teacher reads the same inputs, without dropout, and is neither trained nor saved. After
    loading a model, compile it again with a teacher.

    Args:
        teacher: Keras model with the inputs and the vocabulary of the trained model.
        loss: `SequenceCrossentropy` of the labels. Defaults to one without label smoothing.
        weight: w in [0, 1]. Defaults to 1: the teacher alone; labels only mark padding.
        name: defaults to "distillation".

    Call arguments:
        y_true: integer labels (B, T), or (B,) for one label per row.
        y_pred: logits (B, T, V) or (B, V).
        sample_weight: (B,) or (B, T), or `None`.

    Returns:
        Float32 scalar, the cross-entropy times 1 - w.

    Raises:
        TypeError: `loss` is not a `SequenceCrossentropy`.
        ValueError: `weight` is outside [0, 1]; or, in training, the teacher is missing or knows
            another tokenizer, or the model is not of this package.

    Example:

    >>> sizes = {"num_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 32}
    >>> teacher, student = (kt.CausalTransformer(vocab_size=23, **sizes) for _ in range(2))
    >>> student.compile("adam", loss=kt.Distillation(teacher, weight=0.5))
    """

    def __init__(
        self,
        teacher: keras.Model | None = None,
        loss: SequenceCrossentropy | None = None,
        weight: float = 1.0,
        name: str = "distillation",
    ) -> None:
        super().__init__(loss or SequenceCrossentropy(), name)
        if not 0.0 <= weight <= 1.0:
            raise ValueError(f"weight must be in [0, 1], but it is {weight}.")
        self.teacher: keras.Model | None = teacher
        self.weight: float = weight

    def labels_loss(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> Tensor:
        """Returns the cross-entropy of the labels times 1 - w."""
        if self.weight == 1.0:
            return ops.zeros((), "float32")
        return (1.0 - self.weight) * self.loss(y_true, y_pred, sample_weight)

    def more(
        self,
        model: keras.Model,
        x: Any,
        y_true: Tensor,
        y_pred: Tensor,
        sample_weight: Tensor = None,
        training: bool = True,
    ) -> Tensor | float:
        """Returns the weighted divergence from the teacher."""
        if self.teacher is None:
            raise ValueError(
                "Distillation has no teacher: a saved model does not contain it. Compile the model "
                "again with loss=Distillation(teacher)."
            )
        refuse_other_tokenizers(
            recorded_digests(self.teacher), recorded_digests(model), "The teacher"
        )
        wanted = ops.stop_gradient(self.teacher(x, training=False))
        both = [self._tokens(y_true, z, sample_weight) for z in (y_pred, wanted)]
        weights = both[0][1]
        # Neither padding nor a logit of -inf may make the loss or its gradient NaN.
        log_p, log_q = (
            ops.log_softmax(ops.where(weights[:, None] != 0, ops.maximum(z, LEAST_LOGIT), 0.0))
            for z, _ in both
        )
        divergence = ops.sum(ops.exp(log_q) * (log_q - log_p), axis=-1)  # (N,)
        return self._mean(divergence * self.weight, weights)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "weight": self.weight}

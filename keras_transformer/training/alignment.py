"""Guided alignment training: a second output and a second loss (Chen et al. 2016).

Shapes: B batch, S source length, T target length, V vocabulary.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.decoding import Alignments, CachedDecoding, call_encoder, mean_of_heads
from keras_transformer.layers.blocks import DecoderBlock
from keras_transformer.training.distribution import Model
from keras_transformer.training.losses import ReplicaLoss, token_weights
from keras_transformer.training.replicas import mean_over_replicas
from keras_transformer.types import Shape, Tensor

# Added to attention weights before the logarithm, as a weight may be 0.
LEAST_WEIGHT = 1e-9


@keras.saving.register_keras_serializable("keras_transformer")
class AttendingBlock(keras.layers.Layer):
    """A `DecoderBlock` that also returns its attention to the source.

    In functional models Keras expects the same number of outputs from every call of a layer. So a
    block that was called without its weights needs a wrapper.

    Args:
        block: `DecoderBlock`.

    Call arguments:
        inputs: (B, T, D), the target.
        memory: (B, S, D'), the encoder's output.
        memory_mask: boolean (B, S). Defaults to `None`.

    Returns:
        The block's output (B, T, D), and the weights of each head (B, H, T, S).
    """

    def __init__(self, block: DecoderBlock, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.block = block
        self.supports_masking = True

    def build(self, inputs_shape: Shape, memory_shape: Shape) -> None:
        if not self.block.built:
            self.block.build(inputs_shape, memory_shape)

    def call(
        self, inputs: Tensor, memory: Tensor, memory_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        options = {"memory_mask": memory_mask, "return_attention_scores": True}
        x, scores = self.block(inputs, memory, **options)
        return x, scores["cross"]

    def compute_mask(self, inputs: Tensor, mask: Tensor | None = None) -> list[Tensor | None]:
        return [mask, None]

    def compute_output_shape(self, inputs_shape: Shape, memory_shape: Shape) -> tuple[Shape, Shape]:
        batch_size, length, _ = inputs_shape
        return inputs_shape, (batch_size, self.block.num_heads, length, memory_shape[1])

    def get_config(self) -> dict[str, Any]:
        block = keras.saving.serialize_keras_object(self.block)
        return {**super().get_config(), "block": block}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "AttendingBlock":
        return cls(keras.saving.deserialize_keras_object(config.pop("block")), **config)


def with_alignments(model: CachedDecoding, alignments: Alignments = True) -> keras.Model:
    """Returns a model that outputs the logits and the attention to the source.

    It shares all layers with `model`. Use it to train with guided alignment (Chen et al. 2016,
    arXiv 1607.01628), or to align given translations. Use `model` itself for search, saving and
    export.

    Args:
        model: `Transformer`.
        alignments: the attention heads to average, as in `GreedySearch`. Defaults to `True`, all
            heads of the last layer.

    Returns:
        Functional model with the inputs of `model` and the outputs `{"logits": (B, T, V),
        "alignments": (B, T, S)}`. Row t of the alignments belongs to the token that the logits at
        t predict.

    Raises:
        TypeError: `model` has no encoder.
        ValueError: the decoder has no such layer or head.

    Example:

    >>> model = Transformer(vocab_size=23, num_layers=1, d_model=16, num_heads=2, d_ff=32)
    >>> guided = with_alignments(model)
    >>> losses = {"logits": SequenceCrossentropy(0.1), "alignments": AlignmentCrossentropy()}
    >>> guided.compile("adam", losses, loss_weights={"logits": 1.0, "alignments": 0.05})
    """
    if getattr(model, "encoder", None) is None:
        raise TypeError(
            f"{type(model).__name__} attends to no source, so it has no alignments. Pass a "
            "Transformer."
        )
    stack, heads = model.decoder_stack, model.aligned_heads(alignments)
    inputs = model.input
    memory = call_encoder(model.encoder, inputs)
    x, weights = stack.embed(inputs["target_ids"]), []
    for i, block in enumerate(stack.blocks):
        if i in heads:
            x, scores = AttendingBlock(block)(x, memory)
            weights.append(scores)
        else:
            x = block(x, memory)
    logits = stack.embedding.logits(stack.norm(x))
    outputs = {"logits": logits, "alignments": mean_of_heads(weights, heads)}
    return Model(inputs=inputs, outputs=outputs)


@keras.saving.register_keras_serializable("keras_transformer")
class AlignmentCrossentropy(ReplicaLoss):
    """Computes the cross-entropy of given alignments and attention weights, a mean over tokens.

    It is the loss of guided alignment training (Chen et al. 2016, arXiv 1607.01628, section 3.2),
    as in Garg et al. 2019 (arXiv 1909.02074, equation 5): -1 / T sum_ts(A_ts log a_ts), where A are
    the given alignments and a the attention weights. A token without an alignment adds nothing. The
    divisor is the number of target tokens on all replicas, as in `SequenceCrossentropy`. Both
    losses together are then exact, also with accumulated gradients.

    Args:
        name: defaults to "alignment_crossentropy".

    Call arguments:
        y_true: float (B, T, S), from `translation_batches(..., alignments=...)`. The row of a token
            sums to 1, or is 0 without an alignment. All entries of a padded row are -1.
        y_pred: float (B, T, S), attention weights, the output of `with_alignments`.

    Returns:
        Float32 scalar.

    Example:

    >>> loss = AlignmentCrossentropy()
    >>> attention = keras.ops.array([[[0.5, 0.5], [0.9, 0.1]]])
    >>> round(float(loss([[[1.0, 0.0], [-1.0, -1.0]]], attention)), 4)
    0.6931
    """

    def __init__(self, name: str = "alignment_crossentropy") -> None:
        super().__init__(name=name, dtype="float32")

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> Tensor:
        # Not `call`: Keras would divide its result by the local batch's size.
        given = ops.maximum(ops.cast(y_true, "float32"), 0.0)
        losses = -given * ops.log(ops.cast(y_pred, "float32") + LEAST_WEIGHT)  # (B, T, S)
        losses = ops.sum(losses, axis=-1) * self._weights(y_true, sample_weight)
        return mean_over_replicas(ops.sum(losses), self.batch_weight(y_true, sample_weight))

    def _weights(self, y_true: Tensor, sample_weight: Tensor = None) -> Tensor:
        """Returns the weight of each target token, (B, T); 0 for padding."""
        is_token = ops.cast(ops.cast(y_true, "float32")[..., 0] >= 0, "int32")
        return token_weights(is_token, sample_weight)

    def batch_weight(self, y_true: Tensor, sample_weight: Tensor = None) -> Tensor:
        """Returns the divisor of this batch's mean: its number (or weight) of target tokens."""
        return ops.sum(self._weights(y_true, sample_weight))

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name}

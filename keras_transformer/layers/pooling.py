"""One vector for a whole sequence: a class token in front of it, or pooling.

Shapes: B batch, S length, D size of the vectors.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.base import BaseLayer
from keras_transformer.layers.checks import check_ranks
from keras_transformer.types import Shape, Tensor

MODES = ("mean", "max")


@keras.saving.register_keras_serializable("keras_transformer")
class ClassToken(BaseLayer):
    """Puts a learned vector in front of a sequence: BERT's [CLS], ViT's class token.

    Through attention the token collects information from the other positions. After the last block,
    `y[:, 0]` is the input of a classifier. From BERT (arXiv 1810.04805, section 3); for images ViT
    (arXiv 2010.11929, section 3.1). Call it before you add positions.

    Weights: `embedding` (D,), drawn from a normal distribution of variance 1, as the vectors of
    `TokenEmbedding`.

    Call arguments:
        inputs: (B, S, D).

    Returns:
        (B, S + 1, D), the token first. A Keras mask passes through with one more position. The
        token is never masked, so that rows of padding also give finite numbers.

    Raises:
        ValueError: `inputs` is not of rank 3.

    Example:

    >>> ClassToken()(keras.ops.ones((2, 5, 4))).shape
    (2, 6, 4)
    """

    def build(self, input_shape: Shape) -> None:
        check_ranks(inputs=input_shape)
        normal = keras.initializers.RandomNormal(stddev=1.0)
        self.embedding = self.add_weight(input_shape[-1:], normal, name="embedding")

    def call(self, inputs: Tensor) -> Tensor:
        token = ops.cast(self.embedding, inputs.dtype)  # (D,)
        tokens = ops.broadcast_to(token, (ops.shape(inputs)[0], 1, inputs.shape[-1]))
        return ops.concatenate([tokens, inputs], axis=1)  # (B, S + 1, D)

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None = None) -> Tensor | None:
        if previous_mask is None:
            return None
        mask = ops.cast(previous_mask, "int32")  # tf2onnx does not pad booleans
        return ops.cast(ops.pad(mask, [[0, 0], [1, 0]], constant_values=1), "bool")  # (B, S + 1)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch_size, length, d_model = input_shape
        return batch_size, None if length is None else length + 1, d_model


@keras.saving.register_keras_serializable("keras_transformer")
class SequencePooling(BaseLayer):
    """The mean or the maximum of a sequence's vectors without padding.

    It is the usual pooling of sentence vectors (Reimers and Gurevych, arXiv 1908.10084, section 3).
    A row of padding gives zeros, where Keras' `GlobalAveragePooling1D` gives NaN. Sums are float32
    under every dtype policy.

    Args:
        mode: "mean" or "max". Defaults to "mean".

    Call arguments:
        inputs: (B, S, D).
        mask: boolean (B, S), True for vectors that count. Defaults to the Keras mask of `inputs`.

    Returns:
        (B, D); zeros for rows in which no vector counts.

    Raises:
        ValueError: `mode` is unknown, or the Keras mask of `inputs` was lost.

    Example:

    >>> x = keras.ops.array([[[1.0], [3.0], [100.0]]])
    >>> SequencePooling()(x, mask=keras.ops.array([[True, True, False]]))
    array([[2.]], dtype=float32)
    """

    reads = {"inputs": "mask"}

    def __init__(self, mode: str = "mean", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if mode not in MODES:
            raise ValueError(f"mode must be one of {MODES}, but {mode!r} was passed.")
        self.mode = mode

    def call(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        x = ops.cast(inputs, "float32")
        mask = ops.ones_like(x[..., :1], "bool") if mask is None else mask[..., None]  # (B, S, 1)
        if self.mode == "mean":
            count = ops.sum(ops.cast(mask, "float32"), axis=1)  # (B, 1)
            pooled = ops.sum(ops.where(mask, x, 0.0), axis=1) / ops.maximum(count, 1.0)
        else:
            lowest = -float("inf")
            largest = ops.max(ops.where(mask, x, lowest), axis=1, initial=lowest)
            pooled = ops.where(ops.any(mask, axis=1), largest, 0.0)
        return ops.cast(pooled, inputs.dtype)  # (B, D)

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None = None) -> None:
        return None

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape[0], input_shape[-1]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "mode": self.mode}

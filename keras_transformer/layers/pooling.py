"""One vector for a whole sequence.

Shapes: B batch, S length, D size of the vectors.
"""

import keras
from keras import ops

from keras_transformer.layers.lost_masks import MaskReader

MODES = ("mean", "max")


@keras.saving.register_keras_serializable("keras_transformer")
class SequencePooling(MaskReader):
    """The mean or the largest of a sequence's vectors, padding left out.

    As for sentence vectors (Reimers and Gurevych, arXiv 1908.10084, section 3). Unlike Keras'
    `GlobalAveragePooling1D` it gives zeros for a row of padding only, not NaN, and sums in float32
    under every policy.

    Args:
        mode: "mean" or "max". Defaults to "mean".

    Call arguments:
        inputs: (B, S, D).
        mask: boolean (B, S), True where a vector counts. Defaults to the Keras mask of `inputs`.

    Returns:
        (B, D); zeros where no vector of the row counts.

    Raises:
        ValueError: unknown mode; or the Keras mask was lost on the way here.

    Example:

    >>> x = keras.ops.array([[[1.0], [3.0], [100.0]]])
    >>> SequencePooling()(x, mask=keras.ops.array([[True, True, False]]))
    array([[2.]], dtype=float32)
    """

    explicit_mask = "mask"

    def __init__(self, mode="mean", **kwargs):
        super().__init__(**kwargs)
        if mode not in MODES:
            raise ValueError(f"mode must be one of {MODES}, but {mode!r} was passed.")
        self.mode = mode
        self.supports_masking = True

    def call(self, inputs, mask=None):
        x = ops.cast(inputs, "float32")
        mask = ops.ones_like(x[..., :1], "bool") if mask is None else mask[..., None]  # (B, S, 1)
        if self.mode == "mean":
            count = ops.sum(ops.cast(mask, "float32"), axis=1)  # (B, 1)
            pooled = ops.sum(ops.where(mask, x, 0.0), axis=1) / ops.maximum(count, 1.0)
        else:
            largest = ops.max(ops.where(mask, x, -float("inf")), axis=1)
            pooled = ops.where(ops.any(mask, axis=1), largest, 0.0)
        return ops.cast(pooled, inputs.dtype)  # (B, D)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, input_shape):
        return input_shape[0], input_shape[-1]

    def get_config(self):
        return {**super().get_config(), "mode": self.mode}

"""Convolution over padded frames, such as those of sound.

Shapes: B batch, S frames, S' frames after the strides, C channels, D filters.
"""

import keras
from keras import layers, ops

PADDINGS = ("valid", "same", "causal")


@keras.saving.register_keras_serializable("keras_transformer")
class MaskedConv1D(layers.Conv1D):
    """`keras.layers.Conv1D` that respects the Keras mask and passes it on, strided too.

    Speech models shorten sound by a few strided convolutions before the first block (Dong et al.
    2018, "Speech-Transformer"; Whisper, arXiv 2212.04356, section 2.2). Over embeddings of text it
    tells each piece of a word its neighbours before attention begins, which helps where data is
    little. Keras' own layer destroys the mask. Here masked frames count as zeros, so that a row
    gives the same vectors however far it is padded on the right. `keras.layers.Masking` in front
    makes a mask of frames that are zeros.

    Frame j of the output stands at frame j * strides of the input. "same" puts (k - 1) // 2 zeros
    on the left, k the frames that the kernel spans, whatever the length, as PyTorch does. Keras'
    own "same" shifts by the length where strides are above 1.

    Weights: `kernel` (kernel_size, C, D), `bias` (D,).

    Args:
        filters: D, size of the output's vectors.
        kernel_size: frames that a filter reads.
        strides: one output every so many frames. Defaults to 1.
        padding: "same" or "causal", S' = ceil(S / strides); or "valid", where a filter reads only
            frames that are there. Defaults to "same".
        **kwargs: all others of `keras.layers.Conv1D`.

    Call arguments:
        inputs: (B, S, C).
        mask: boolean (B, S), True = a real frame. Defaults to the Keras mask of `inputs`.

    Returns:
        (B, S', D), with the Keras mask (B, S').

    Raises:
        ValueError: unknown padding, or channels first.

    Example:

    >>> MaskedConv1D(filters=8, kernel_size=3, strides=2)(keras.ops.ones((2, 7, 4))).shape
    (2, 4, 8)
    """

    def __init__(self, filters, kernel_size, strides=1, padding="same", **kwargs):
        super().__init__(filters, kernel_size, strides=strides, padding=padding, **kwargs)
        if self.padding not in PADDINGS:
            raise ValueError(f"padding must be one of {PADDINGS}, but {padding!r} was passed.")
        if self.data_format != "channels_last":
            raise ValueError("MaskedConv1D takes frames as (batch, frames, channels) only.")
        self.supports_masking = True

    @property
    def _span(self):
        """How many frames lie between the first and the last that a filter reads."""
        return (self.kernel_size[0] - 1) * self.dilation_rate[0]

    def call(self, inputs, mask=None):
        if mask is not None:
            inputs = ops.where(mask[..., None], inputs, ops.zeros_like(inputs))
        left = {"valid": 0, "same": self._span // 2, "causal": self._span}[self.padding]
        right = self._span - left if self.padding == "same" else 0
        x = ops.conv(
            ops.pad(inputs, [[0, 0], [left, right], [0, 0]]), self.kernel, list(self.strides),
            padding="valid", dilation_rate=self.dilation_rate,
        )  # fmt: skip
        x = x + self.bias if self.use_bias else x
        return x if self.activation is None else self.activation(x)  # (B, S', D)

    def compute_mask(self, inputs, previous_mask=None):
        if previous_mask is None:
            return None
        mask = previous_mask
        if self.padding == "valid":  # both ends of the filter lie on real frames
            mask = ops.logical_and(
                mask[:, : ops.shape(mask)[1] - self._span], mask[:, self._span :]
            )
        return mask[:, :: self.strides[0]]

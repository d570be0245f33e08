"""Queries and keys turned by their positions, inside attention (arXiv 2104.09864).

Shapes: B batch, T number of vectors, H heads, K key size.
"""

import keras
from keras import ops

from keras_transformer.layers.positions.encoding import (
    PositionEncoding,
    angles,
    at,
    check_even,
    position_range,
)


@keras.saving.register_keras_serializable("keras_transformer")
class RotaryPositionEncoding(PositionEncoding):
    """Rotates pairs of channels of queries and keys by their position's angle.

    Channels 2i and 2i+1 of the vector at position pos are turned by
    pos / 10000^(2i/K), the angles of section 3.5, so that q . k depends on the
    distance of the two positions only (RoFormer, arXiv 2104.09864). It goes
    inside attention, not onto the embeddings. No weights.

    Call arguments:
        inputs: (..., T, K) queries or keys, K even.
        offset: position of the first vector. Defaults to 0.
        length: number of positions, T (default) or 1.

    Returns:
        The rotated vectors, same shape and dtype.

    Raises:
        ValueError: K is odd.

    Example:

    >>> RotaryPositionEncoding()(keras.ops.ones((1, 1, 2, 2)))[0, 0]
    array([[ 1.        ,  1.        ],
           [-0.30116868,  1.3817732 ]], dtype=float32)
    """

    in_attention = True

    def build(self, input_shape):
        check_even(input_shape[-1], "RotaryPositionEncoding")
        self.built = True

    def call(self, inputs, offset=0, length=None):
        length, size = length or ops.shape(inputs)[-2], inputs.shape[-1]
        angle = angles(position_range(length, offset), size)  # (T, K/2)
        cos, sin = ops.cast(ops.cos(angle), inputs.dtype), ops.cast(ops.sin(angle), inputs.dtype)
        even, odd = inputs[..., 0::2], inputs[..., 1::2]  # (..., T, K/2)
        pairs = ops.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
        return ops.reshape(pairs, ops.shape(inputs))

    def rotate(self, heads, position=None):
        """The call, for attention."""
        return self(heads, **at(position))

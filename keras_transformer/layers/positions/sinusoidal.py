"""Sines and cosines of the position, added to the embeddings (section 3.5 of the paper).

Shapes: B batch, T number of vectors, D d_model.
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
class SinusoidalPositionEncoding(PositionEncoding):
    """Adds sines and cosines of geometrically spaced wavelengths (section 3.5).

    PE(pos, 2i) = sin(pos / 10000^(2i/d_model)) and
    PE(pos, 2i+1) = cos(pos / 10000^(2i/d_model)). No weights, no longest length.

    Args:
        base: of the wavelengths. Defaults to the paper's 10000.

    Call arguments:
        inputs: (B, T, D) embeddings, D even.
        offset: position of the first vector, an integer or an integer scalar
            tensor. Defaults to 0.
        length: number of positions, T (default); or 1, where all vectors are
            alternatives for the same position.

    Returns:
        (B, T, D): `inputs` + PE. A Keras mask passes through.

    Raises:
        ValueError: D is odd, or `base` is not above 1.

    Example:

    >>> SinusoidalPositionEncoding()(keras.ops.zeros((1, 2, 4)))
    array([[[0.        , 1.        , 0.        , 1.        ],
            [0.84147096, 0.54030233, 0.00999983, 0.99995   ]]], dtype=float32)
    """

    def __init__(self, base=10000.0, **kwargs):
        super().__init__(**kwargs)
        if not base > 1:
            raise ValueError(f"base must be above 1, but {base} was passed.")
        self.base = float(base)

    def build(self, input_shape):
        check_even(input_shape[-1], "SinusoidalPositionEncoding")
        self.built = True

    def call(self, inputs, offset=0, length=None):
        length, d_model = length or ops.shape(inputs)[1], inputs.shape[-1]
        angle = angles(position_range(length, offset), d_model, self.base)  # (T, D/2)
        pairs = ops.stack([ops.sin(angle), ops.cos(angle)], axis=-1)  # (T, D/2, 2)
        encoding = ops.reshape(pairs, (-1, d_model))  # (T, D)
        return inputs + ops.cast(encoding, inputs.dtype)[None]

    def add(self, embeddings, position=None):
        """The call, for models."""
        return self(embeddings, **at(position))

    def get_config(self):
        return {**super().get_config(), "base": self.base}

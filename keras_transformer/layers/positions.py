"""Position encodings (section 3.5 of the paper), and rotary ones.

Attention does not see order; these layers put it in. Positions count from 0
and are computed in float32, then cast to the layer's compute dtype.

The layers take the position of the first vector (`offset`) and how many positions there are
(`length`): as many as vectors, or 1 where all are alternatives for the same one, as the hypotheses
of a search are.

Shapes: B batch, T number of vectors, D d_model, K key size.
"""

import keras
from keras import layers, ops

from keras_transformer.layers.checks import check_positive


def angles(positions, size, base=10000.0):
    """The angle pos / base^(2i/size) of every position and pair of channels.

    Args:
        positions: float32 tensor (T,).
        size: D, an even number of channels.
        base: wavelength base. Defaults to the paper's 10000.

    Returns:
        float32 tensor (T, D / 2); column i holds the angle of channels 2i and 2i+1.
    """
    exponents = ops.arange(0, size, 2, dtype="float32") / size  # (D/2,)
    return positions[:, None] / ops.power(base, exponents)[None, :]


def position_range(length, offset):
    """Positions offset .. offset + length - 1 as float32 (length,)."""
    return ops.cast(ops.arange(length) + offset, "float32")


def check_even(size, what):
    """Refuses a size that does not split into pairs of channels."""
    if size is None or size % 2:
        raise ValueError(
            f"{what} pairs a sine with a cosine and needs an even number of channels, but the "
            f"input's last axis is {size}. Choose an even size."
        )


@keras.saving.register_keras_serializable("keras_transformer")
class SinusoidalPositionEncoding(layers.Layer):
    """Adds sines and cosines of geometrically spaced wavelengths (section 3.5).

    PE(pos, 2i) = sin(pos / 10000^(2i/d_model)) and
    PE(pos, 2i+1) = cos(pos / 10000^(2i/d_model)). No weights, no longest length.

    Call arguments:
        inputs: (B, T, D) embeddings, D even.
        offset: position of the first token, an integer or an integer scalar
            tensor. Defaults to 0.
        length: number of positions, T (default) or 1.

    Returns:
        (B, T, D): `inputs` + PE. A Keras mask passes through.

    Raises:
        ValueError: D is odd.

    Example:

    >>> SinusoidalPositionEncoding()(keras.ops.zeros((1, 2, 4)))
    array([[[0.        , 1.        , 0.        , 1.        ],
            [0.84147096, 0.54030233, 0.00999983, 0.99995   ]]], dtype=float32)
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, input_shape):
        check_even(input_shape[-1], "SinusoidalPositionEncoding")
        self.built = True

    def call(self, inputs, offset=0, length=None):
        length, d_model = length or ops.shape(inputs)[1], inputs.shape[-1]
        angle = angles(position_range(length, offset), d_model)  # (T, D/2)
        pairs = ops.stack([ops.sin(angle), ops.cos(angle)], axis=-1)  # (T, D/2, 2)
        encoding = ops.reshape(pairs, (-1, d_model))  # (T, D)
        return inputs + ops.cast(encoding, inputs.dtype)[None]

    def compute_output_shape(self, input_shape):
        return input_shape


@keras.saving.register_keras_serializable("keras_transformer")
class LearnedPositionEncoding(layers.Layer):
    """Adds a learned vector for each position (Table 3, row E).

    Weights: `embeddings` (max_length, D), drawn from N(0, D^-1/2) as the scaled
    token embeddings' own size suggests.

    Args:
        max_length: number of positions that have a vector.

    Call arguments:
        inputs: (B, T, D) embeddings.
        offset: position of the first token. Defaults to 0.
        length: number of positions, T (default) or 1.

    Returns:
        (B, T, D): `inputs` + learned encoding. A Keras mask passes through.

    Raises:
        ValueError: `max_length` is not positive, or the sequence (with an
            integer `offset`) is longer than `max_length`.

    Example:

    >>> LearnedPositionEncoding(max_length=16)(keras.ops.zeros((2, 5, 8))).shape
    (2, 5, 8)
    """

    def __init__(self, max_length, **kwargs):
        super().__init__(**kwargs)
        check_positive(max_length=max_length)
        self.max_length = max_length
        self.supports_masking = True

    def build(self, input_shape):
        d_model = input_shape[-1]
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_length, d_model),
            initializer=keras.initializers.RandomNormal(stddev=d_model**-0.5),
        )

    def call(self, inputs, offset=0, length=None):
        length = length or ops.shape(inputs)[1]
        if isinstance(offset, int):
            if isinstance(length, int) and offset + length > self.max_length:
                raise ValueError(
                    f"A sequence that ends at position {offset + length} was passed, but this "
                    f"layer has learned positions for max_length={self.max_length} tokens only. "
                    "Cut the sequence or build the layer with a larger max_length."
                )
            # Where the length is known at run time only, the sum refuses a table that is too
            # short; a lookup by position would give zeros on a GPU.
            vectors = self.embeddings[offset : offset + length]  # (T, D)
        else:
            vectors = ops.take(self.embeddings, ops.arange(length) + offset, axis=0)  # (T, D)
        return inputs + ops.cast(vectors, inputs.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "max_length": self.max_length}


@keras.saving.register_keras_serializable("keras_transformer")
class RotaryPositionEncoding(layers.Layer):
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

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

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

    def compute_output_shape(self, input_shape):
        return input_shape

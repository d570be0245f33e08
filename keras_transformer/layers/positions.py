"""Position encodings (section 3.5 of the paper), which tell attention the order of its inputs.

Positions count from 0. Encodings are computed in float32 and then cast to the layer's compute
dtype.

Shapes: B batch, T number of vectors, S number of keys, H heads, K key size, D d_model.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.base import BaseLayer
from keras_transformer.layers.checks import check_positive
from keras_transformer.types import Shape, Tensor

# Learned vectors that are added start with the mean square of sinusoids at every width, so that
# they are neither noise beside tokens of variance 1 nor larger.
ADDED_STDDEV = 0.5**0.5


@keras.saving.register_keras_serializable("keras_transformer")
class PositionEncoding(BaseLayer):
    """Base class of position encodings, which changes nothing.

    An encoding overrides `call`, or `bias`, or both. Models call it on the embeddings. With
    `in_attention`, every self-attention calls a copy of it on queries and keys instead, and adds
    `bias` to its scores.

    Attributes:
        in_attention: whether the encoding acts inside attention. Defaults to `False`.
        max_length: number of positions that can be encoded, or `None` for no limit.

    Call arguments:
        inputs: (..., T, D).
        offset: position of the first vector, an integer or an integer scalar tensor. Defaults to 0.
        length: number of positions: T (default); or 1, if all vectors stand at position `offset`.

    Returns:
        Encoded vectors, same shape and dtype.

    Example, attention that decreases with distance (arXiv 2108.12409). Register the class, because
    blocks and models copy your encoding from its configuration:

    >>> @keras.saving.register_keras_serializable("my_project")
    ... class LinearBias(PositionEncoding):
    ...     in_attention = True
    ...
    ...     def bias(self, queries, keys, num_heads):
    ...         heads = keras.ops.arange(num_heads, dtype="float32")
    ...         slopes = 2.0 ** (-8.0 * (1.0 + heads) / num_heads)
    ...         distances = keras.ops.abs(queries[:, None] - keys[None, :])
    ...         return -slopes[:, None, None] * keras.ops.cast(distances, "float32")
    >>> EncoderBlock(num_heads=2, d_ff=16, positions=LinearBias())(keras.ops.ones((1, 3, 8))).shape
    (1, 3, 8)
    """

    in_attention: bool = False
    max_length: int | None = None

    def call(self, inputs: Tensor, offset: int | Tensor = 0, length: int | None = None) -> Tensor:
        return inputs

    def at(self, inputs: Tensor, position: int | Tensor | None) -> Tensor:
        """Encodes vectors that all stand at `position`; at 0 to T - 1 if it is `None`."""
        return self(inputs) if position is None else self(inputs, offset=position, length=1)

    @property
    def has_bias(self) -> bool:
        """Whether the encoding overrides `bias`."""
        return type(self).bias is not PositionEncoding.bias

    def bias(self, queries: Tensor, keys: Tensor, num_heads: int) -> Tensor | None:
        """Returns a bias of attention scores, float32 (H, T, S) or (1, T, S), or `None`.

        Args:
            queries: (T,) integers, the positions of the queries.
            keys: (S,) integers, the positions of the keys.
            num_heads: H.
        """
        return None

    def bias_between(
        self, queries: Tensor, keys: Tensor, position: int | Tensor | None
    ) -> Tensor | None:
        """Returns `bias` for queries (B, H, T, K) and keys (B, H, S, K).

        With `position`, the keys are a cache: each earlier position has T keys, one for each
        hypothesis of a search.
        """
        targets = ops.shape(queries)[2]
        query_positions = ops.arange(targets, dtype="int32")
        key_positions = ops.arange(ops.shape(keys)[2], dtype="int32")
        if position is not None:
            query_positions = ops.zeros_like(query_positions) + position
            key_positions = key_positions // targets
        return self.bias(query_positions, key_positions, queries.shape[1])


class AngleEncoding(PositionEncoding):
    """A position encoding by the sine and cosine of an angle for each pair of channels."""

    def build(self, input_shape: Shape) -> None:
        if input_shape[-1] is None or input_shape[-1] % 2:
            raise ValueError(
                f"{type(self).__name__} pairs a sine with a cosine and needs an even number of "
                f"channels, but the input's last axis is {input_shape[-1]}. Choose an even size."
            )

    def sines_and_cosines(
        self, positions: Tensor, size: int, base: float = 10000.0
    ) -> tuple[Tensor, Tensor]:
        """Computes the sine and the cosine of pos / base^(2i/size), float32 (T, size / 2) each.

        i numbers the pairs of channels 2i and 2i + 1, and pos is one of the T `positions`, float32.
        """
        angles = _angles(positions, ops.arange(0, size, 2), size, base)
        return ops.sin(angles), ops.cos(angles)

    def sinusoids(self, positions: Tensor, size: int, base: float = 10000.0) -> Tensor:
        """Returns `sines_and_cosines` in turn, float32 (T, size): channel 2i holds a sine."""
        channels = ops.arange(size)
        angles = _angles(positions, channels // 2 * 2, size, base)
        # A step of a search takes five nodes for this, and ten to stack the pairs.
        return ops.where(channels % 2 == 0, ops.sin(angles), ops.cos(angles))


def _angles(positions: Tensor, channels: Tensor, size: int, base: float) -> Tensor:
    """Returns pos / base^(channel/size), float32 (T, C)."""
    exponents = ops.cast(channels, "float32") / size
    return positions[:, None] / ops.power(base, exponents)[None, :]


def _positions(length: int | Tensor, offset: int | Tensor) -> Tensor:
    """Returns the positions from `offset` on, float32 (T,)."""
    if isinstance(length, int) and length == 1:  # without a sum, in a step of a search
        return ops.reshape(ops.cast(offset, "float32"), (1,))
    return ops.cast(ops.arange(length, dtype="int32") + offset, "float32")


def check_base(base: float) -> float:
    """Returns the base of wavelengths as a float, or raises unless it is above 1."""
    if not base > 1:
        raise ValueError(f"base must be above 1, but {base} was passed.")
    return float(base)


@keras.saving.register_keras_serializable("keras_transformer")
class SinusoidalPositionEncoding(AngleEncoding):
    """Adds sines and cosines of geometrically spaced wavelengths (section 3.5).

    PE(pos, 2i) = sin(pos / 10000^(2i/d_model)) and
    PE(pos, 2i+1) = cos(pos / 10000^(2i/d_model)). It has no weights and no maximum length.

    Args:
        base: base of the wavelengths. Defaults to the paper's 10000.

    Call arguments:
        inputs: (B, T, D) embeddings, D even.
        offset, length: as in `PositionEncoding`.

    Returns:
        (B, T, D): `inputs` + PE. A Keras mask passes through.

    Raises:
        ValueError: D is odd, or `base` is not above 1.

    Example:

    >>> SinusoidalPositionEncoding()(keras.ops.zeros((1, 2, 4)))
    array([[[0.        , 1.        , 0.        , 1.        ],
            [0.84147096, 0.54030233, 0.00999983, 0.99995   ]]], dtype=float32)
    """

    def __init__(self, base: float = 10000.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.base = check_base(base)

    def call(self, inputs: Tensor, offset: int | Tensor = 0, length: int | None = None) -> Tensor:
        positions = _positions(length or ops.shape(inputs)[1], offset)
        encoding = self.sinusoids(positions, inputs.shape[-1], self.base)  # (T, D)
        return inputs + ops.cast(encoding, inputs.dtype)[None]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "base": self.base}


@keras.saving.register_keras_serializable("keras_transformer")
class RotaryPositionEncoding(AngleEncoding):
    """Rotates pairs of channels of queries and keys by the angle of their position.

    Channels 2i and 2i+1 of the vector at position pos are rotated by pos / 10000^(2i/K), the angles
    of section 3.5. Then q . k depends only on the distance of the two positions (RoFormer, arXiv
    2104.09864). It acts inside attention, not on the embeddings. It has no weights.

    Call arguments:
        inputs: (..., T, K) queries or keys, K even.
        offset, length: as in `PositionEncoding`.

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

    def call(self, inputs: Tensor, offset: int | Tensor = 0, length: int | None = None) -> Tensor:
        positions = _positions(length or ops.shape(inputs)[-2], offset)
        sin, cos = self.sines_and_cosines(positions, inputs.shape[-1])  # (T, K/2)
        sin, cos = ops.cast(sin, inputs.dtype), ops.cast(cos, inputs.dtype)
        even, odd = inputs[..., 0::2], inputs[..., 1::2]  # (..., T, K/2)
        pairs = ops.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
        return ops.reshape(pairs, ops.shape(inputs))


@keras.saving.register_keras_serializable("keras_transformer")
class LearnedPositionEncoding(PositionEncoding):
    """Adds a learned vector for each position (Table 3, row E).

    Weights: `embeddings` (max_length, D), drawn from a normal distribution of variance 1/2, the
    mean square of sinusoids.

    Args:
        max_length: number of positions that have a vector. Defaults to 1024.

    Call arguments:
        inputs: (B, T, D) embeddings.
        offset, length: as in `PositionEncoding`.

    Returns:
        (B, T, D): `inputs` + learned encoding. A Keras mask passes through.

    Raises:
        ValueError: `max_length` is not positive, or the sequence (with an integer `offset`) is
            longer than `max_length`.

    Example:

    >>> LearnedPositionEncoding(max_length=16)(keras.ops.zeros((2, 5, 8))).shape
    (2, 5, 8)
    """

    def __init__(self, max_length: int = 1024, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive(max_length=max_length)
        self.max_length = max_length

    def build(self, input_shape: Shape) -> None:
        d_model = input_shape[-1]
        normal = keras.initializers.RandomNormal(stddev=ADDED_STDDEV)
        self.embeddings = self.add_weight((self.max_length, d_model), normal, name="embeddings")

    def call(self, inputs: Tensor, offset: int | Tensor = 0, length: int | None = None) -> Tensor:
        length = length or ops.shape(inputs)[1]
        if isinstance(offset, int):
            if isinstance(length, int) and offset + length > self.max_length:
                raise ValueError(
                    f"A sequence that ends at position {offset + length} was passed, but this "
                    f"layer has learned positions for max_length={self.max_length} tokens only. "
                    "Cut the sequence or build the layer with a larger max_length."
                )
            # If the length is known at run time only, the reshape fails for a table that is too
            # short. A lookup by position would give zeros on a GPU. TensorFlow would remove a
            # reshape to the same rank and broadcast a single vector.
            vectors = self.embeddings[offset : offset + length]
            vectors = ops.reshape(vectors, (1, length, inputs.shape[-1]))  # (1, T, D)
        else:
            positions = ops.arange(length, dtype="int32") + offset
            vectors = ops.take(self.embeddings, positions, axis=0)  # (T, D)
        return inputs + ops.cast(vectors, inputs.dtype)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "max_length": self.max_length}


ENCODINGS: dict[str, type[PositionEncoding]] = {
    "sinusoidal": SinusoidalPositionEncoding,
    "learned": LearnedPositionEncoding,
    "rotary": RotaryPositionEncoding,
}


def position_encoding(positions: Any, **options: Any) -> PositionEncoding:
    """Makes a new position encoding from a name or another encoding.

    Args:
        positions: "sinusoidal", "learned" or "rotary"; a `PositionEncoding`, which is copied; or
            the serialized configuration of one.
        **options: `name` and `dtype` of the new layer.

    Returns:
        A `PositionEncoding`.

    Raises:
        ValueError: `positions` is an unknown name, or of another type.
    """
    if isinstance(positions, dict):
        positions = keras.saving.deserialize_keras_object(positions)
    if isinstance(positions, PositionEncoding):
        return positions.from_config({**positions.get_config(), **options})
    if positions not in ENCODINGS:
        raise ValueError(
            f'positions must be "sinusoidal", "learned" or "rotary", or an encoding such as '
            f"LearnedPositionEncoding(max_length=512), but {positions!r} was passed."
        )
    return ENCODINGS[positions](**options)


@keras.saving.register_keras_serializable("keras_transformer")
class GridPositionEncoding(AngleEncoding):
    """Adds encodings of the row and column of each vector, for patches or pixels in reading order.

    The first half of the channels gets the sinusoids of the row, the second half the
    sinusoids of the column (Image Transformer, arXiv 1802.05751). It has no weights and no maximum
    length.

    Args:
        columns: number of vectors in a row of the grid.
        start: position of the first vector of the grid, such as 1 after a class token. Positions
            before it continue the grid backwards, so they are encoded as the end of row -1.
            Defaults to 0.
        base: base of the wavelengths. Small grids need no long ones. Defaults to the paper's 10000.

    Call arguments:
        inputs: (B, T, D) embeddings, D divisible by 4.
        offset, length: as in `PositionEncoding`.

    Returns:
        (B, T, D): `inputs` + encoding. A Keras mask passes through.

    Raises:
        ValueError: D is not divisible by 4, `columns` is not positive, `start` is negative, or
            `base` is not above 1.

    Example, row 0 and row 1 of a grid with two columns:

    >>> GridPositionEncoding(columns=2)(keras.ops.zeros((1, 4, 4)))
    array([[[0.        , 1.        , 0.        , 1.        ],
            [0.        , 1.        , 0.84147096, 0.54030233],
            [0.84147096, 0.54030233, 0.        , 1.        ],
            [0.84147096, 0.54030233, 0.84147096, 0.54030233]]], dtype=float32)
    """

    def __init__(self, columns: int, start: int = 0, base: float = 10000.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive(columns=columns)
        if start < 0:
            raise ValueError(f"start must be at least 0, but {start} was passed.")
        self.columns, self.start, self.base = columns, start, check_base(base)

    def build(self, input_shape: Shape) -> None:
        if input_shape[-1] is None or input_shape[-1] % 4:
            raise ValueError(
                "GridPositionEncoding pairs sines with cosines for row and column and needs a "
                f"number of channels divisible by 4, but the input's last axis is "
                f"{input_shape[-1]}. Choose another size."
            )

    def call(self, inputs: Tensor, offset: int | Tensor = 0, length: int | None = None) -> Tensor:
        size = inputs.shape[-1]
        # In floats: ONNX rounds negative quotients of integers towards 0.
        positions = _positions(length or ops.shape(inputs)[1], offset - self.start)
        rows = ops.floor(positions / self.columns)
        places = rows, positions - rows * self.columns
        halves = [self.sinusoids(place, size // 2, self.base) for place in places]
        encoding = ops.concatenate(halves, axis=1)  # (T, D)
        return inputs + ops.cast(encoding, inputs.dtype)[None]

    def get_config(self) -> dict[str, Any]:
        config = {"columns": self.columns, "start": self.start, "base": self.base}
        return {**super().get_config(), **config}

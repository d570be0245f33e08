"""Position encodings (section 3.5 of the paper), which tell attention the order of its inputs.

Positions count from 0. Encodings are computed in float32 and then cast to the layer's compute
dtype.

Shapes: B batch, T number of vectors, S number of keys, H heads, K key size, D d_model.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.layers.base import BaseLayer
from keras_transformer.layers.checks import check_positive
from keras_transformer.layers.masks import FORBIDDEN
from keras_transformer.types import Shape, Tensor

# Name of the operations that fail for a row with too few positions, before their number.
LONGER_THAN = "sequence_is_longer_than_max_length_"
# Learned vectors that are added start with the mean square of sinusoids at every width, so that
# they are neither noise beside tokens of variance 1 nor larger.
ADDED_STDDEV = 0.5**0.5


@keras.saving.register_keras_serializable("keras_transformer")
class PositionEncoding(BaseLayer):
    """Base class of position encodings, which changes nothing.

    An encoding overrides `call`, or `bias`, or both. Models call it on the embeddings. With
    `in_attention`, every self-attention calls a copy of it on queries and keys instead, and adds
    `bias` to its scores.

    Args:
        window: greatest distance of a query and a key that attend to each other, for local
            attention. Defaults to `None`, no limit.

    Attributes:
        in_attention: whether the encoding acts inside attention. Defaults to `False`.
        shared: whether all blocks of a stack use one copy, with one set of weights. Defaults to
            `False`.
        max_length: number of positions that can be encoded, or `None` for no limit.

    Call arguments:
        inputs: (..., T, D).
        offset: position of the first vector, an integer or an integer scalar tensor. Defaults to 0.
        length: number of positions: T (default); or 1, if all vectors stand at position `offset`.

    Returns:
        Encoded vectors, same shape and dtype.

    Raises:
        ValueError: `window` is not positive, or the encoding does not act inside attention.

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
    shared: bool = False
    max_length: int | None = None

    def __init__(self, window: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if window is not None:
            check_positive(window=window)
            if not self.in_attention:
                raise ValueError(
                    f"window={window} limits attention, but {type(self).__name__} does not act "
                    "inside attention. Leave it out, or use an encoding such as "
                    "RotaryPositionEncoding."
                )
        self.window: int | None = window

    def call(self, inputs: Tensor, offset: int | Tensor = 0, length: int | None = None) -> Tensor:
        return inputs

    def at(self, inputs: Tensor, position: int | Tensor | None) -> Tensor:
        """Encodes vectors that all stand at `position`; at 0 to T - 1 if it is `None`."""
        return self(inputs) if position is None else self(inputs, offset=position, length=1)

    @property
    def has_bias(self) -> bool:
        """Whether `bias_between` returns a bias: of a window, or because `bias` is overridden."""
        return self.window is not None or type(self).bias is not PositionEncoding.bias

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
        """Returns `bias` for queries (B, H, T, K) and keys (B, H, S, K): float32 (1, H or 1, T, S).

        With `position`, the keys are a cache: each earlier position has T keys, one for each
        hypothesis of a search. The bias then also hides keys beyond the window.
        """
        places = _places(queries, keys, position)
        bias = self.bias(*places, queries.shape[1])
        if self.window is not None and position is not None:
            beyond = ops.cast(_distances(*places) > self.window, "float32")[None] * FORBIDDEN
            bias = beyond if bias is None else bias + beyond
        return None if bias is None else bias[None]

    def mask_between(
        self, queries: Tensor, keys: Tensor, position: int | Tensor | None
    ) -> Tensor | None:
        """Returns the mask of the window, boolean (1, T, S), or `None` without one.

        The arguments are as in `bias_between`. With `position`, the bias has the window.
        """
        if self.window is None or position is not None:
            return None
        return (_distances(*_places(queries, keys, None)) <= self.window)[None]

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        return config if self.window is None else {**config, "window": self.window}


def _places(queries: Tensor, keys: Tensor, position: int | Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the positions (T,) of queries and (S,) of keys; see `bias_between`."""
    targets = ops.shape(queries)[2]
    query_positions = ops.arange(targets, dtype="int32")
    key_positions = ops.arange(ops.shape(keys)[2], dtype="int32")
    if position is not None:
        query_positions = ops.zeros_like(query_positions) + position
        key_positions = key_positions // targets
    return query_positions, key_positions


def _distances(queries: Tensor, keys: Tensor) -> Tensor:
    """Returns the distance of each position (T,) from each position (S,): (T, S)."""
    return ops.abs(queries[:, None] - keys[None])


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

    Args:
        base: base of the wavelengths. Defaults to 10000.
        size: number of channels that are rotated, from the first one. The angles are then
            pos / base^(2i/size). Defaults to `None`: all K.
        window: as in `PositionEncoding`. Defaults to `None`.

    Call arguments:
        inputs: (..., T, K) queries or keys, K even.
        offset, length: as in `PositionEncoding`.

    Returns:
        The rotated vectors, same shape and dtype.

    Raises:
        ValueError: K or `size` is odd, `size` is larger than K, or `base` is not above 1.

    Example:

    >>> RotaryPositionEncoding()(keras.ops.ones((1, 1, 2, 2)))[0, 0]
    array([[ 1.        ,  1.        ],
           [-0.30116868,  1.3817732 ]], dtype=float32)
    """

    in_attention = True

    def __init__(
        self,
        base: float = 10000.0,
        size: int | None = None,
        window: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(window=window, **kwargs)
        self.base: float = check_base(base)
        self.size: int | None = size

    def build(self, input_shape: Shape) -> None:
        if self.size is None:
            return super().build(input_shape)
        check_positive(size=self.size)
        if self.size > input_shape[-1]:
            raise ValueError(
                f"RotaryPositionEncoding cannot rotate size={self.size} of {input_shape[-1]} "
                "channels. Pass the size of a head's queries, or less."
            )
        return super().build((*input_shape[:-1], self.size))

    def call(self, inputs: Tensor, offset: int | Tensor = 0, length: int | None = None) -> Tensor:
        size = self.size or inputs.shape[-1]
        positions = _positions(length or ops.shape(inputs)[-2], offset)
        sin, cos = self.sines_and_cosines(positions, size, self.base)  # (T, size / 2)
        sin, cos = ops.cast(sin, inputs.dtype), ops.cast(cos, inputs.dtype)
        even, odd = inputs[..., 0:size:2], inputs[..., 1:size:2]  # (..., T, size / 2)
        pairs = ops.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
        if size == inputs.shape[-1]:
            return ops.reshape(pairs, ops.shape(inputs))
        rotated = ops.reshape(pairs, (*ops.shape(inputs)[:-1], size))
        return ops.concatenate([rotated, inputs[..., size:]], axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "base": self.base, "size": self.size}


@keras.saving.register_keras_serializable("keras_transformer")
class RelativePositionBias(PositionEncoding):
    """Adds a learned bias to the scores, one for each head and range of distances (T5).

    Half of the ranges hold one distance each. The others grow by a constant factor up to
    `max_distance`, and the last one holds all larger distances (arXiv 1910.10683, section 2.1). In
    a model, all blocks of a stack share the bias.

    Weights: `buckets` (num_buckets, H), zeros.

    Args:
        num_buckets: number of ranges. Defaults to 32.
        max_distance: distance from which all keys have the same bias. Defaults to 128.
        bidirectional: whether keys after the query have half of the ranges. With `False`, for
            decoders, they have the range of the distance 0. Defaults to `True`.
        window: as in `PositionEncoding`. Defaults to `None`.

    Call arguments:
        inputs: (B, H, T, K) queries or keys.
        offset, length: as in `PositionEncoding`.

    Returns:
        `inputs`. `bias` returns the bias of the scores.

    Raises:
        ValueError: there are fewer than 2 ranges (4 with `bidirectional`), an odd number with
            `bidirectional`, or `max_distance` is not larger than half of the ranges of one side.

    Example:

    >>> bias = RelativePositionBias(num_buckets=8, max_distance=16)
    >>> bias.build((None, 2, None, 4))
    >>> bias.bias(keras.ops.arange(3), keras.ops.arange(5), num_heads=2).shape
    (2, 3, 5)
    """

    in_attention = True
    shared = True

    def __init__(
        self,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        window: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(window=window, **kwargs)
        check_positive(num_buckets=num_buckets, max_distance=max_distance)
        side, odd = divmod(num_buckets, 1 + bidirectional)
        exact = side // 2
        if odd or not 0 < exact < max_distance:
            raise ValueError(
                f"num_buckets={num_buckets} and max_distance={max_distance} give no ranges of "
                f"distances with bidirectional={bidirectional}. Each side needs at least 2 ranges, "
                "of which half are smaller than max_distance."
            )
        self.num_buckets: int = num_buckets
        self.max_distance: int = max_distance
        self.bidirectional: bool = bidirectional
        # In float32, as T5: distances at the ends of a range are rounded to the same side.
        distances = np.arange(max_distance + 1, dtype=np.float32)
        growth = np.log(np.maximum(distances, exact) / np.float32(exact))
        growth = growth / np.float32(np.log(max_distance / exact)) * np.float32(side - exact)
        far = np.minimum(exact + growth.astype(np.int32), side - 1)
        before = np.where(distances < exact, distances, far).astype(np.int32)
        after = before[1:] + side if bidirectional else np.zeros(max_distance, np.int32)
        # The range of each distance of a key from its query, from -max_distance on.
        self._ranges = np.concatenate([before[::-1], after])

    def build(self, input_shape: Shape) -> None:
        # Without autocast, the bias is float32 under every dtype policy.
        shape = (self.num_buckets, input_shape[1])
        self.buckets: keras.Variable = self.add_weight(
            shape, "zeros", name="buckets", autocast=False
        )

    def bias(self, queries: Tensor, keys: Tensor, num_heads: int) -> Tensor:
        """Returns the bias of each pair, float32 (H, T, S); see `PositionEncoding.bias`."""
        distances = ops.clip(keys[None] - queries[:, None], -self.max_distance, self.max_distance)
        table = ops.take(ops.cast(self.buckets, "float32"), self._ranges, axis=0)
        biases = ops.take(table, distances + self.max_distance, axis=0)  # (T, S, H)
        return ops.transpose(biases, (2, 0, 1))

    def get_config(self) -> dict[str, Any]:
        names = ("num_buckets", "max_distance", "bidirectional")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


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
            # short; the name of the scope is then a part of the error. A lookup by position would
            # give zeros on a GPU. TensorFlow would remove a reshape to the same rank and broadcast
            # a single vector.
            vectors = self.embeddings[offset : offset + length]
            with keras.name_scope(f"{LONGER_THAN}{self.max_length}"):
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
        positions: "sinusoidal", "learned" or "rotary"; a `PositionEncoding`, which is copied unless
            it is built and `shared`; or the serialized configuration of one.
        **options: `name` and `dtype` of the new layer.

    Returns:
        A `PositionEncoding`.

    Raises:
        ValueError: `positions` is an unknown name, or of another type.
    """
    if isinstance(positions, dict):
        positions = keras.saving.deserialize_keras_object(positions)
    if isinstance(positions, PositionEncoding):
        if positions.shared and positions.built:
            return positions
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

"""What blocks and models ask of a position encoding, and what encodings share.

Shapes: B batch, T number of vectors, S number of keys, H heads, K key size, D d_model.
"""

from keras import layers, ops


class PositionEncoding(layers.Layer):
    """What blocks and models ask of a position encoding: three methods, `add`, `rotate`, `bias`.

    This one does nothing; a real one has at least one method of its own. In a step of a search all
    T vectors are alternatives for the same `position`; without it, vector i stands at position i.

    Attributes:
        in_attention: whether `rotate` and `bias` do something, and so whether every self-attention
            holds an encoding of this kind; otherwise the embeddings do. Defaults to `False`.
        max_length: number of positions that can be encoded, or `None` for no limit.

    Example, attention that falls off with distance (arXiv 2108.12409). It is registered, for blocks
    and models make their own encodings from the configuration of the one that they are given:

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

    in_attention = False
    max_length = None

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def add(self, embeddings, position=None):
        """Embeddings (B, T, D) with their positions added, (B, T, D)."""
        return embeddings

    def rotate(self, heads, position=None):
        """Queries or keys (B, H, T, K) turned by their positions, (B, H, T, K)."""
        return heads

    def bias(self, queries, keys, num_heads):
        """What is added to attention scores, float32 (H, T, S) or (1, T, S), or `None`.

        `queries` (T,) and `keys` (S,) are their positions, integers.
        """
        return None

    def bias_between(self, queries, keys, position=None):
        """`bias` of queries (B, H, T, K) and keys (B, H, S, K).

        With `position` the keys are a cache's: each earlier position has T of them, one for each
        alternative.
        """
        if not self.in_attention:
            return None
        heads, targets = queries.shape[1], ops.shape(queries)[2]
        query_positions, key_positions = ops.arange(targets), ops.arange(ops.shape(keys)[2])
        if position is not None:
            query_positions = ops.zeros_like(query_positions) + position
            key_positions = key_positions // targets
        return self.bias(query_positions, key_positions, heads)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return super().get_config()  # Keras' own guess fails for dtype policies


def at(position):
    """Arguments `offset` and `length` of an encoding's call for what stands at one position."""
    return {} if position is None else {"offset": position, "length": 1}


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

"""A learned vector for each position, added to the embeddings (Table 3, row E of the paper).

Shapes: B batch, T number of vectors, D d_model.
"""

import keras
from keras import ops

from keras_transformer.layers.checks import check_positive
from keras_transformer.layers.positions.encoding import PositionEncoding, at


@keras.saving.register_keras_serializable("keras_transformer")
class LearnedPositionEncoding(PositionEncoding):
    """Adds a learned vector for each position (Table 3, row E).

    Weights: `embeddings` (max_length, D), drawn from a normal distribution of standard deviation
    D^-1/2: small beside embeddings of unit variance, so that order is learned, not forgotten.

    Args:
        max_length: number of positions that have a vector. Defaults to 1024.

    Call arguments:
        inputs: (B, T, D) embeddings.
        offset: position of the first vector. Defaults to 0.
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

    def __init__(self, max_length=1024, **kwargs):
        super().__init__(**kwargs)
        check_positive(max_length=max_length)
        self.max_length = max_length

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

    def add(self, embeddings, position=None):
        """The call, for models."""
        return self(embeddings, **at(position))

    def get_config(self):
        return {**super().get_config(), "max_length": self.max_length}

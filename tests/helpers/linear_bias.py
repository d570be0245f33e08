"""A custom position encoding: scores fall with distance (arXiv 2108.12409)."""

import keras
from keras import ops

from keras_transformer import PositionEncoding


@keras.saving.register_keras_serializable("tests")
class LinearBias(PositionEncoding):
    in_attention = True

    def bias(self, queries, keys, num_heads):
        slopes = 2.0 ** (-8.0 * (1.0 + ops.arange(num_heads, dtype="float32")) / num_heads)
        distances = ops.cast(ops.abs(queries[:, None] - keys[None, :]), "float32")
        return -slopes[:, None, None] * distances  # (H, T, S)

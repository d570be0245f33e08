"""Additive attention, the alternative that section 3.2.1 of the paper compares with.

Shapes: B batch, T target (query) length, S source (key) length, A attention units, U value size,
D d_model.
"""

import keras
from keras import layers, ops

from keras_transformer.layers.checks import check_positive, check_ranks, check_same_length
from keras_transformer.layers.dot_product import masked_softmax
from keras_transformer.layers.lost_masks import MaskReader
from keras_transformer.layers.masks import attention_shape, combine_masks
from keras_transformer.layers.nested import NestedLayer


@keras.saving.register_keras_serializable("keras_transformer")
class AdditiveAttention(NestedLayer, MaskReader):
    """Attention with a feed-forward compatibility function (compared in section 3.2.1).

    softmax(v . tanh(W^Q q + W^K k)) V, after Bahdanau et al. (arXiv 1409.0473). In theory as
    costly as dot products; in practice slower and larger, since it holds (B, T, S, A)
    numbers. It needs no scale: for large d_k it beats the unscaled dot product.

    Args:
        units: size of the hidden layer, the counterpart of d_k.

    Call arguments:
        query: (B, T, D).
        value: (B, S, U).
        key: (B, S, D''). Defaults to `value`.
        attention_mask: boolean (B, S) or (B, T, S), True = may attend.

    Returns:
        (B, T, U): weighted means of `value`. A Keras mask on `value` or `key` is
        respected. A query that may attend to nothing gets zeros.

    Raises:
        ValueError: `units` is not positive, inputs are not of rank 3, keys are not as many as
            values, a mask of another rank or size; or a functional model's Keras mask was lost.
        TypeError: a mask that is not boolean.

    Example:

    >>> x = keras.random.normal((3, 5, 8))
    >>> AdditiveAttention(units=4)(x, x).shape
    (3, 5, 8)
    """

    reads = ("value", "key")

    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        check_positive(units=units)
        self.units = units
        self.supports_masking = True
        self.query_projection = layers.Dense(
            units, use_bias=False, dtype=self.dtype_policy, name="query"
        )
        self.key_projection = layers.Dense(
            units, use_bias=False, dtype=self.dtype_policy, name="key"
        )
        self.score = layers.Dense(1, use_bias=False, dtype=self.dtype_policy, name="score")

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        check_ranks(query=query_shape, value=value_shape, key=key_shape)
        self.query_projection.build(query_shape)
        self.key_projection.build(key_shape)
        self.score.build((*query_shape[:-1], self.units))
        self.restore_sublayers()

    def call(self, query, value, key=None, attention_mask=None, value_mask=None, key_mask=None):
        key = value if key is None else key
        check_same_length(key, value)
        queries = self.query_projection(query)[:, :, None, :]  # (B, T, 1, A)
        keys = self.key_projection(key)[:, None, :, :]  # (B, 1, S, A)
        scores = self.score(ops.tanh(queries + keys))[..., 0]  # (B, T, S)
        scores_shape = (query.shape[0], 1, query.shape[1], value.shape[1])
        masks = (attention_mask, value_mask, key_mask)
        mask = combine_masks(*(attention_shape(mask, scores_shape) for mask in masks))
        weights = masked_softmax(scores, None if mask is None else mask[:, 0])
        return ops.matmul(ops.cast(weights, value.dtype), value)  # (B, T, U)

    def compute_output_shape(self, query_shape, value_shape, key_shape=None):
        return (*query_shape[:-1], value_shape[-1])

    def get_config(self):
        return {**super().get_config(), "units": self.units}

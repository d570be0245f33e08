"""Additive attention, which section 3.2.1 of the paper compares with the dot product.

Shapes: B batch, T target (query) length, S source (key) length, A attention units, U value size,
D d_model.
"""

from typing import Any

import keras
from keras import layers, ops

from keras_transformer.layers.attention import masked_softmax
from keras_transformer.layers.base import BaseLayer
from keras_transformer.layers.checks import check_positive, check_ranks, check_same_length
from keras_transformer.layers.masks import attention_shape, combine_masks
from keras_transformer.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_transformer")
class AdditiveAttention(BaseLayer):
    """Attention with a feed-forward compatibility function (compared in section 3.2.1).

    softmax(v . tanh(W^Q q + W^K k)) V, after Bahdanau et al. (arXiv 1409.0473). In theory it costs
    as much as the dot product. In practice it is slower and needs more memory, because it holds
    (B, T, S, A) numbers. It needs no scale: for large d_k it is better than the unscaled dot
    product.

    Args:
        units: A, size of the hidden layer.

    Call arguments:
        query: (B, T, D).
        value: (B, S, U).
        key: (B, S, D''). Defaults to `value`.
        attention_mask: boolean (B, S) or (B, T, S), True = may attend.

    Returns:
        (B, T, U), weighted means of `value`. Keras masks of `value` and `key` are combined with the
        explicit mask. A fully masked query gets zeros.

    Raises:
        ValueError: `units` is not positive, an input is not of rank 3, `key` and `value` have
            different lengths, a mask does not fit, or the Keras mask of `value` or `key` was lost.
        TypeError: a mask is not boolean.

    Example:

    >>> x = keras.random.normal((3, 5, 8))
    >>> AdditiveAttention(units=4)(x, x).shape
    (3, 5, 8)
    """

    reads = {"value": "attention_mask", "key": "attention_mask"}

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive(units=units)
        self.units = int(units)
        options = {"use_bias": False, "dtype": self.dtype_policy}
        self.query_projection = layers.Dense(self.units, name="query", **options)
        self.key_projection = layers.Dense(self.units, name="key", **options)
        self.score = layers.Dense(1, name="score", **options)

    def build(self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None) -> None:
        key_shape = value_shape if key_shape is None else key_shape
        check_ranks(query=query_shape, value=value_shape, key=key_shape)
        self.query_projection.build(query_shape)
        self.key_projection.build(key_shape)
        self.score.build((*query_shape[:-1], self.units))
        self.restore_sublayers()

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        attention_mask: Tensor | None = None,
        value_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
    ) -> Tensor:
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

    def compute_output_shape(
        self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None
    ) -> Shape:
        return (*query_shape[:-1], value_shape[-1])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}

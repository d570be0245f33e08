"""Attention: the scaled dot product and its multi-head form (section 3.2 of the paper).

Shapes: B batch, T target (query) length, S source (key) length, H heads, K key size d_k,
U value size d_v, D d_model. "..." are any axes.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops

from keras_transformer.layers.base import BaseLayer
from keras_transformer.layers.checks import check_positive, check_ranks, check_same_length
from keras_transformer.layers.masks import FORBIDDEN, attention_shape, causal_mask, combine_masks
from keras_transformer.layers.positions import position_encoding
from keras_transformer.types import Shape, Tensor


def masked_softmax(
    scores: Tensor, mask: Tensor | None = None, attention_bias: Tensor | None = None
) -> Tensor:
    """Computes the softmax over the last axis of scores (..., T, S), in float32.

    Masked entries are exactly 0, and so is a fully masked row. `attention_bias` must not be
    `FORBIDDEN` for a whole row.
    """
    scores = ops.cast(scores, "float32")
    # TensorFlow fuses a product with the bias that is added to it. On CPUs the fused kernel is 15
    # to 130 times slower if the batch shares the bias. `scores + bias` and `scores - (-bias)` would
    # be fused into that slow kernel; this form is not.
    if attention_bias is not None:
        scores = scores - ops.cast(attention_bias, "float32") * -1.0
    # Keras warns of a softmax over one entry, which is normal in the first step of a search.
    softmax = ops.softmax if scores.shape[-1] != 1 else ops.ones_like
    if mask is None:
        return softmax(scores)
    # On CPUs this is several times faster than selecting single scores. The factor for each row
    # sets fully masked rows to zero.
    forbidden = ops.convert_to_tensor(-FORBIDDEN, "float32")
    weights = softmax(scores - ops.where(mask, ops.zeros_like(forbidden), forbidden))
    return weights * ops.cast(ops.any(mask, axis=-1, keepdims=True), "float32")


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout: Callable[[Tensor], Tensor] | None = None,
    attention_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes softmax(Q K^T / sqrt(d_k)) V (section 3.2.1, equation 1).

    The scale keeps the variance of q . k at 1 if the components of q and k have variance 1. Without
    it, large d_k would push the softmax to regions where gradients vanish.

    Args:
        query, key, value: Q (..., T, K), K (..., S, K), V (..., S, U).
        mask: boolean, broadcasts to (..., T, S), True = may attend; or `None`.
        dropout: function applied to the weights before they multiply V; or `None`.
        attention_bias: float, broadcasts to (..., T, S), added to the scores; or `None`.

    Returns:
        Output (..., T, U) and weights (..., T, S), both in the dtype of `value`. A query whose keys
        are all masked gets zeros.

    Example:

    >>> q = keras.ops.ones((1, 2, 4))
    >>> output, weights = scaled_dot_product_attention(q, q, q)
    >>> weights[0]
    array([[0.5, 0.5],
           [0.5, 0.5]], dtype=float32)
    """
    # `ops.dot_product_attention` is slower in training on TensorFlow and JAX CPUs, and a fully
    # masked row does not give zeros there.
    scale = ops.cast(query.shape[-1] ** -0.5, query.dtype)
    scores = ops.matmul(query * scale, ops.swapaxes(key, -1, -2))  # (..., T, S)
    weights = ops.cast(masked_softmax(scores, mask, attention_bias), value.dtype)
    return ops.matmul(dropout(weights) if dropout else weights, value), weights


def append(past: Tensor, new: Tensor) -> Tensor:
    """Concatenates past and new keys, values or biases on axis 2: a cache that grows."""
    return ops.concatenate([past, new], axis=2)


@keras.saving.register_keras_serializable("keras_transformer")
class MultiHeadAttention(BaseLayer):
    """Several attentions in parallel, each in its own subspace (section 3.2.2).

    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O with
    head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V). The three uses of section 3.2.3:
    encoder self-attention `mha(x, x)`, masked decoder self-attention
    `mha(x, x, use_causal_mask=True)`, encoder-decoder attention `mha(x, memory)`.

    Weights, head i in columns iK .. iK+K-1: `query/kernel` and `key/kernel` (D, H K),
    `value/kernel` (D, H U), `output/kernel` (H U, D), and a `bias` beside each if `use_bias`.
    The first three start with half of Glorot's variance, the variance for one matrix (D, 3 D) of
    all three. Deep post-norm models then learn to align far more reliably.

    Args:
        num_heads: h, number of heads.
        key_dim: d_k, size of a head's queries and keys.
        value_dim: d_v, size of a head's values. Defaults to `key_dim`.
        dropout: rate of dropout on the attention weights. Defaults to 0.
        use_bias: whether the four projections add a bias. Defaults to `True`.
        positions: a position encoding inside self-attention, such as "rotary" or
            `RotaryPositionEncoding()`. Defaults to `None`.

    Call arguments:
        query: (B, T, D).
        value: (B, S, D').
        key: (B, S, D''). Defaults to `value`.
        attention_mask: boolean (B, S), (B, T, S) or (B, H, T, S), True = may attend.
        use_causal_mask: whether query i may attend to keys up to i only. Defaults to `False`.
        training: whether to apply dropout.
        return_attention_scores: whether to also return the attention weights. Defaults to `False`.

    Returns:
        (B, T, D); or a pair of it and the weights of each head, (B, H, T, S), before dropout.
        Keras masks of `value` and `key` are combined with the explicit mask. The mask of `query`
        passes through. A fully masked query gets the output projection of zeros.

    Raises:
        ValueError: a size is not positive, an input is not of rank 3, `key` and `value` have
            different lengths, a mask does not fit, `positions` acts on embeddings only, or the
            Keras mask of `value` or `key` was lost.
        TypeError: a mask is not boolean.

    Example:

    >>> mha = MultiHeadAttention(num_heads=2, key_dim=4)
    >>> x = keras.random.normal((3, 5, 8))
    >>> mha(x, x, use_causal_mask=True).shape
    (3, 5, 8)
    """

    reads = {"value": "attention_mask", "key": "attention_mask"}

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        positions: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        value_dim = key_dim if value_dim is None else value_dim
        check_positive(num_heads=num_heads, key_dim=key_dim, value_dim=value_dim)
        # NumPy's integers are no sizes for Keras.
        num_heads, key_dim, value_dim = int(num_heads), int(key_dim), int(value_dim)
        self.num_heads, self.key_dim, self.value_dim = num_heads, key_dim, value_dim
        self.dropout, self.use_bias = dropout, use_bias
        self.query_projection = self._projection("query", num_heads * key_dim)
        self.key_projection = self._projection("key", num_heads * key_dim)
        self.value_projection = self._projection("value", num_heads * value_dim)
        self.dropout_layer = layers.Dropout(dropout, dtype=self.dtype_policy)
        self._positions_config = keras.saving.serialize_keras_object(positions)
        self.positions = None
        if positions is not None:
            self.positions = position_encoding(positions, dtype=self.dtype_policy, name="positions")
            if not self.positions.in_attention:
                raise ValueError(
                    f"{type(self.positions).__name__} does nothing inside attention. Call it on "
                    "the embeddings, or pass it to a model as `positions`."
                )

    def _projection(self, name: str, size: int, scale: float = 0.5) -> layers.Dense:
        return layers.Dense(
            size,
            use_bias=self.use_bias,
            kernel_initializer=keras.initializers.VarianceScaling(scale, "fan_avg", "uniform"),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, query_shape: Shape, value_shape: Shape, key_shape: Shape | None = None) -> None:
        key_shape = value_shape if key_shape is None else key_shape
        check_ranks(query=query_shape, value=value_shape, key=key_shape)
        self.query_projection.build(query_shape)
        self.key_projection.build(key_shape)
        self.value_projection.build(value_shape)
        if self.positions is not None and not self.positions.built:
            self.positions.build((query_shape[0], self.num_heads, query_shape[1], self.key_dim))
        self.output_projection = self._projection("output", query_shape[-1], scale=1.0)
        self.output_projection.build((*query_shape[:-1], self.num_heads * self.value_dim))
        self.restore_sublayers()

    def call(
        self,
        query: Tensor,
        value: Tensor,
        key: Tensor | None = None,
        attention_mask: Tensor | None = None,
        use_causal_mask: bool = False,
        training: bool | None = None,
        return_attention_scores: bool = False,
        value_mask: Tensor | None = None,  # Keras passes its masks of `value` and `key`
        key_mask: Tensor | None = None,
    ) -> Any:
        causal = None
        if use_causal_mask:
            num_keys = None if value is query else ops.shape(value)[1]
            causal = causal_mask(ops.shape(query)[1], num_keys=num_keys)
        keys, values = self.project_key_value(value, key)
        masks = (attention_mask, causal, value_mask, key_mask)
        output, weights = self.attend(query, keys, values, *masks)
        return (output, weights) if return_attention_scores else output

    def initial_cache(self, batch_size: int | Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys (B, H, 0, K) and values (B, H, 0, U), the cache before the first step."""
        shape = (batch_size, self.num_heads, 0)
        keys = ops.zeros((*shape, self.key_dim), self.compute_dtype)
        return keys, ops.zeros((*shape, self.value_dim), self.compute_dtype)

    def step(
        self,
        query: Tensor,
        cache: tuple[Tensor, Tensor],
        position: int | Tensor,
        attention_bias: Tensor | None = None,
        add: Callable[[Tensor, Tensor], Tensor] = append,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Attends from one new token of each hypothesis to itself and its past.

        Args:
            query: (B, W, D), the new tokens.
            cache: keys (B, H, O, K) and values (B, H, O, U); after them the closed ones, if any:
                keys (B, H, C, K) and values (B, H, C, U).
            position: t, integer scalar, the position of the new tokens.
            attention_bias: float (B, 1, W, C + O + W), `FORBIDDEN` at the slots of other
                hypotheses. `None` for one hypothesis per sentence.
            add: function that adds new keys or values to the cache.

        Returns:
            Outputs (B, W, D), and the cache with the new tokens, without closed ones.
        """
        new_keys, new_values = self.project_key_value(query, position=position)
        keys, values, *closed = cache
        cache = add(keys, new_keys), add(values, new_values)
        both = map(append, closed, cache) if closed else cache
        output, _ = self.attend(query, *both, attention_bias=attention_bias, position=position)
        return output, cache

    def project_key_value(
        self, value: Tensor, key: Tensor | None = None, position: int | Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Projects `value` (B, S, D') to keys (B, H, S, K) and values (B, H, S, U) for `attend`.

        A search projects a source once for all steps. All vectors stand at `position`, an integer
        scalar, or at 0 to S - 1 if it is `None`.
        """
        key = value if key is None else key
        check_same_length(key, value)
        keys = self._project_heads(self.key_projection, key)
        if self.positions is not None:
            keys = self.positions.at(keys, position)
        return keys, self._project_heads(self.value_projection, value)

    def attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        *masks: Tensor | None,
        attention_bias: Tensor | None = None,
        position: int | Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Attends from `query` (B, T, D) to the results of `project_key_value`.

        `masks` are as `attention_mask` of the call, `attention_bias` as in
        `scaled_dot_product_attention`, and `position` as in `project_key_value`. Returns outputs
        (B, T, D) and weights (B, H, T, S).
        """
        scores_shape = (query.shape[0], self.num_heads, query.shape[1], keys.shape[2])
        queries = self._project_heads(self.query_projection, query)
        if self.positions is not None:
            masks = (*masks, self.positions.mask_between(queries, keys, position))
            queries = self.positions.at(queries, position)
            bias = self.positions.bias_between(queries, keys, position)
            if bias is not None:
                attention_bias = bias if attention_bias is None else attention_bias + bias
        mask = combine_masks(*(attention_shape(mask, scores_shape) for mask in masks))
        dropout = self.dropout_layer if self.dropout else None
        heads, weights = scaled_dot_product_attention(
            queries, keys, values, mask, dropout, attention_bias
        )
        joined = ops.transpose(heads, (0, 2, 1, 3))  # (B, T, H, U)
        rows = ops.reshape(joined, (-1, self.num_heads * self.value_dim))  # (B T, H U)
        output = ops.reshape(self.output_projection(rows), (-1, *ops.shape(query)[1:]))
        return output, weights

    def _project_heads(self, projection: layers.Dense, x: Tensor) -> Tensor:
        """Projects (B, T, D) to (B, H, T, K). One row per token lets TensorFlow fuse the bias."""
        rows = projection(ops.reshape(x, (-1, x.shape[-1])))  # (B T, H K)
        size = rows.shape[-1] // self.num_heads
        heads = ops.reshape(rows, (-1, ops.shape(x)[1], self.num_heads, size))  # (B, T, H, K)
        return ops.transpose(heads, (0, 2, 1, 3))

    def get_config(self) -> dict[str, Any]:
        names = ("num_heads", "key_dim", "value_dim", "dropout", "use_bias")
        config = {name: getattr(self, name) for name in names}
        return {**super().get_config(), **config, "positions": self._positions_config}

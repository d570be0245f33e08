"""Multi-head attention (section 3.2.2 of the paper).

Shapes: B batch, T target (query) length, S source (key) length, H heads, K key size d_k,
U value size d_v, D d_model.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
from keras import layers, ops

from keras_transformer.layers.checks import check_positive, check_ranks, check_same_length
from keras_transformer.layers.dot_product import scaled_dot_product_attention
from keras_transformer.layers.lost_masks import MaskReader
from keras_transformer.layers.masks import attention_shape, causal_mask, combine_masks
from keras_transformer.layers.nested import NestedLayer
from keras_transformer.layers.positions import attention_positions


def append(past: Any, new: Any) -> Any:
    """Concatenates past and new keys, values or biases on axis 2: a cache that grows."""
    return ops.concatenate([past, new], axis=2)


@keras.saving.register_keras_serializable("keras_transformer")
class MultiHeadAttention(NestedLayer, MaskReader):
    """Several attentions side by side, each in a subspace of its own (section 3.2.2).

    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O with
    head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V). The three uses of section 3.2.3:
    encoder self-attention `mha(x, x)`, masked decoder self-attention
    `mha(x, x, use_causal_mask=True)`, encoder-decoder attention `mha(x, memory)`.

    Weights, head i in columns iK .. iK+K-1: `query/kernel` and `key/kernel` (D, H K),
    `value/kernel` (D, H U), `output/kernel` (H U, D), and a `bias` beside each if `use_bias`.
    The first three start with half of Glorot's variance, which is Glorot's for one matrix
    (D, 3 D) of all three; deep post-norm models learn to align far more reliably from there.

    Args:
        num_heads: h, number of heads.
        key_dim: d_k, size of a head's queries and keys.
        value_dim: d_v, size of a head's values. Defaults to `key_dim`.
        dropout: rate of dropout on the attention weights. Defaults to 0.
        use_bias: whether the four projections add a bias. Defaults to `True`.
        positions: a position encoding that acts inside self-attention, such as "rotary" or
            `RotaryPositionEncoding()`. Defaults to `None`.

    Call arguments:
        query: (B, T, D).
        value: (B, S, D'), what is attended to.
        key: (B, S, D''). Defaults to `value`.
        attention_mask: boolean (B, S), (B, T, S) or (B, H, T, S), True = may attend.
        use_causal_mask: whether query i sees keys up to i only. Defaults to `False`.
        training: whether dropout is applied.
        return_attention_scores: whether to return the attention weights, too. Defaults to `False`.

    Returns:
        (B, T, D); or a pair of it and the weights of each head, (B, H, T, S), before dropout. A
        Keras mask on `value` or `key` masks out their padding, beside the explicit mask; one on
        `query` passes through. A query that may attend to nothing gets the output projection of
        zeros.

    Raises:
        ValueError: sizes are not positive, inputs not of rank 3, keys not as many as values, a
            mask of another rank or size; or a functional model's Keras mask was lost.
        TypeError: a mask that is not boolean.

    Example:

    >>> mha = MultiHeadAttention(num_heads=2, key_dim=4)
    >>> x = keras.random.normal((3, 5, 8))
    >>> mha(x, x, use_causal_mask=True).shape
    (3, 5, 8)
    """

    reads = ("value", "key")

    def __init__(
        self, num_heads, key_dim, value_dim=None, dropout=0.0, use_bias=True, positions=None,
        **kwargs,
    ):  # fmt: skip
        super().__init__(**kwargs)
        value_dim = key_dim if value_dim is None else value_dim
        check_positive(num_heads=num_heads, key_dim=key_dim, value_dim=value_dim)
        self.num_heads, self.key_dim, self.value_dim = num_heads, key_dim, value_dim
        self.dropout, self.use_bias = dropout, use_bias
        self.supports_masking = True
        self.query_projection = self._projection("query", num_heads * key_dim)
        self.key_projection = self._projection("key", num_heads * key_dim)
        self.value_projection = self._projection("value", num_heads * value_dim)
        self.dropout_layer = layers.Dropout(dropout, dtype=self.dtype_policy)
        self._positions_config = keras.saving.serialize_keras_object(positions)
        self.positions = attention_positions(positions, dtype=self.dtype_policy, name="positions")

    def _projection(self, name, size, scale=0.5):
        return layers.Dense(
            size, use_bias=self.use_bias, dtype=self.dtype_policy, name=name,
            kernel_initializer=keras.initializers.VarianceScaling(scale, "fan_avg", "uniform"),
        )  # fmt: skip

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        check_ranks(query=query_shape, value=value_shape, key=key_shape)
        self.query_projection.build(query_shape)
        self.key_projection.build(key_shape)
        self.value_projection.build(value_shape)
        self.positions.build((*query_shape[:-1], self.key_dim))
        self.output_projection = self._projection("output", query_shape[-1], scale=1.0)
        self.output_projection.build((*query_shape[:-1], self.num_heads * self.value_dim))
        self.restore_sublayers()

    def call(
        self, query, value, key=None, attention_mask=None, use_causal_mask=False, training=None,
        return_attention_scores=False, value_mask=None, key_mask=None,
    ):  # fmt: skip
        causal = causal_mask(ops.shape(query)[1]) if use_causal_mask else None
        masks = (attention_mask, causal, value_mask, key_mask)
        scores_shape = (query.shape[0], self.num_heads, query.shape[1], value.shape[1])
        mask = combine_masks(*(attention_shape(mask, scores_shape) for mask in masks))
        keys, values = self.project_key_value(value, key)
        output, scores = self._attend(query, keys, values, mask, training=training)
        return (output, scores) if return_attention_scores else output

    def initial_cache(self, batch_size: Any) -> tuple[Any, Any]:
        """Keys (B, H, 0, K) and values (B, H, 0, U) before the first step."""
        sizes = self.key_dim, self.value_dim
        keys, values = (
            ops.zeros((batch_size, self.num_heads, 0, size), self.compute_dtype) for size in sizes
        )
        return keys, values

    def step(
        self, query: Any, cache: tuple[Any, Any], position: Any, attention_bias: Any = None,
        put: Callable[[Any, Any], Any] = append,
    ) -> tuple[Any, tuple[Any, Any]]:  # fmt: skip
        """Causal self-attention of one new token of each hypothesis to itself and its past.

        Args:
            query: (B, W, D), the new tokens.
            cache: keys (B, H, t W, K) and values (B, H, t W, U).
            position: t, integer scalar, the position of the new tokens.
            attention_bias: float (B, 1, W, (t + 1) W), `FORBIDDEN` at the slots of other
                hypotheses. `None` for one hypothesis a sentence.
            put: function that adds the new tokens' keys or values to those of the cache.

        Returns:
            Outputs (B, W, D), and the cache with the new tokens.
        """
        new = self.project_key_value(query, position=position)
        keys, values = (put(*pair) for pair in zip(cache, new, strict=True))
        output = self.attend(query, keys, values, attention_bias=attention_bias, position=position)
        return output, (keys, values)

    def project_key_value(self, value, key=None, position=None):
        """Keys (B, H, S, K) and values (B, H, S, U) of `value` (B, S, D') for `attend`.

        Computed once a source, they serve every step of a search. All stand at `position`, an
        integer scalar, if it is given, else at 0 to S - 1.
        """
        key = value if key is None else key
        check_same_length(key, value)
        keys = self.positions.rotate(self._project_heads(self.key_projection, key), position)
        return keys, self._project_heads(self.value_projection, value)

    def attend(
        self, query, keys, values, mask=None, attention_bias=None, position=None, training=None
    ):
        """Attends from `query` (B, T, D) to what `project_key_value` returned: (B, T, D).

        `mask` is a boolean (B, S), (B, T, S) or (B, H, T, S), or `None`; `attention_bias` as in
        `scaled_dot_product_attention`, `position` as in `project_key_value`.
        """
        return self._attend(query, keys, values, mask, attention_bias, position, training)[0]

    def _attend(
        self, query, keys, values, mask=None, attention_bias=None, position=None, training=None
    ):
        """`attend`'s output, and the weights (B, H, T, S)."""
        scores_shape = (query.shape[0], self.num_heads, query.shape[1], keys.shape[2])
        mask = attention_shape(mask, scores_shape)
        queries = self.positions.rotate(self._project_heads(self.query_projection, query), position)
        bias = self.positions.bias_between(queries, keys, position)
        if bias is not None:
            attention_bias = bias if attention_bias is None else attention_bias + bias
        dropout = partial(self.dropout_layer, training=training) if self.dropout else None
        heads, weights = scaled_dot_product_attention(
            queries, keys, values, mask, dropout, attention_bias
        )
        joined = ops.transpose(heads, (0, 2, 1, 3))  # (B, T, H, U)
        rows = ops.reshape(joined, (-1, self.num_heads * self.value_dim))  # (B T, H U)
        output = ops.reshape(self.output_projection(rows), (-1, *ops.shape(query)[1:]))
        return output, weights  # (B, T, D), (B, H, T, S)

    def _project_heads(self, projection, x):
        """(B, T, D) -> (B, H, T, K). One row a token: TensorFlow fuses product and bias."""
        rows = projection(ops.reshape(x, (-1, x.shape[-1])))  # (B T, H K)
        size = rows.shape[-1] // self.num_heads
        heads = ops.reshape(rows, (-1, ops.shape(x)[1], self.num_heads, size))  # (B, T, H, K)
        return ops.transpose(heads, (0, 2, 1, 3))

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        return query_shape

    def compute_output_spec(self, query, value, *args, **options):
        output = super().compute_output_spec(query, value, *args, **options)
        if not options.get("return_attention_scores"):
            return output
        shape = (query.shape[0], self.num_heads, query.shape[1], value.shape[1])
        return output, keras.KerasTensor(shape, self.compute_dtype)

    def get_config(self):
        names = ("num_heads", "key_dim", "value_dim", "dropout", "use_bias")
        config = {name: getattr(self, name) for name in names}
        return {**super().get_config(), **config, "positions": self._positions_config}

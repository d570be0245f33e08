"""Attention (section 3.2 of the paper).

Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V.

Shapes: B batch, T target (query) length, S source (key) length, H heads,
K key size d_k, W value size d_v, D d_model.
"""

from functools import partial

import keras
from keras import layers, ops

from keras_transformer.masks import attention_shape, causal_mask, combine_masks
from keras_transformer.positions import RotaryPositionEncoding

# Taken off the scores of forbidden pairs: far more than any real score, so that the
# float32 softmax gives them exactly 0.
FORBIDDEN = 1e9


def masked_softmax(scores, mask=None):
    """Softmax over the last axis, in float32, of the allowed scores.

    Args:
        scores: (..., T, S) of any floating dtype.
        mask: boolean, broadcasts to `scores`, True = may attend; or `None`.

    Returns:
        float32 (..., T, S): rows sum to 1, forbidden entries are exactly 0. A row
        with no allowed entry is all 0.
    """
    scores = ops.cast(scores, "float32")
    # Keras warns of a softmax over one entry, which a first step rightly has.
    softmax = ops.softmax if scores.shape[-1] != 1 else ops.ones_like
    if mask is None:
        return softmax(scores)
    # A small broadcast difference is several times faster on CPUs than selecting
    # elementwise (and than a sum, which TensorFlow fuses into a product that runs
    # at a tenth of the speed); one factor a row then zeroes the rows that have
    # nothing to attend to.
    weights = softmax(scores - ops.where(mask, 0.0, FORBIDDEN))
    return weights * ops.cast(ops.any(mask, axis=-1, keepdims=True), "float32")


def scaled_dot_product_attention(query, key, value, mask=None, dropout=None):
    """softmax(Q K^T / sqrt(d_k)) V (section 3.2.1, equation 1).

    The scale keeps the variance of q . k at 1 when the components of q and k have
    variance 1; without it large d_k would push the softmax to where gradients vanish.

    Args:
        query: Q, (..., T, K).
        key: K, (..., S, K).
        value: V, (..., S, W).
        mask: boolean, broadcasts to (..., T, S), True = may attend; or `None`.
        dropout: function applied to the weights before they meet V; or `None`.

    Returns:
        A pair: output (..., T, W) in the dtype of `value`, and weights (..., T, S)
        in that dtype too (the softmax runs in float32). A query whose keys are all
        forbidden gets zeros.

    Example:

    >>> q = keras.ops.ones((1, 2, 4))
    >>> output, weights = scaled_dot_product_attention(q, q, q)
    >>> weights[0]
    array([[0.5, 0.5],
           [0.5, 0.5]], dtype=float32)
    """
    scale = ops.cast(query.shape[-1] ** -0.5, query.dtype)
    scores = ops.matmul(query * scale, ops.swapaxes(key, -1, -2))  # (..., T, S)
    weights = ops.cast(masked_softmax(scores, mask), value.dtype)
    return ops.matmul(dropout(weights) if dropout else weights, value), weights


def check_ranks(**shapes):
    """Refuses inputs that are not (batch, length, features)."""
    for name, shape in shapes.items():
        if len(shape) != 3:
            raise ValueError(
                f"{name} must have shape (batch, length, features), but {tuple(shape)} "
                "was passed. Add or merge axes first."
            )


@keras.saving.register_keras_serializable("keras_transformer")
class MultiHeadAttention(layers.Layer):
    """Several attentions side by side, each in a subspace of its own (section 3.2.2).

    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W^O with
    head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V). The three uses of section 3.2.3:
    encoder self-attention `mha(x, x)`, masked decoder self-attention
    `mha(x, x, use_causal_mask=True)`, encoder-decoder attention `mha(x, memory)`.

    Weights, head i in columns iK .. iK+K-1: `query/kernel` and `key/kernel` (D, H K),
    `value/kernel` (D, H W), `output/kernel` (H W, D), and a `bias` beside each
    kernel if `use_bias`. The projections start with half of Glorot's variance, which is
    Glorot's for the one matrix (D, 3 D) that computes all three; deep post-norm
    models learn to align far more reliably from there.

    Args:
        num_heads: h, number of heads.
        key_dim: d_k, size of a head's queries and keys.
        value_dim: d_v, size of a head's values. Defaults to `key_dim`.
        dropout: rate of dropout on the attention weights. Defaults to 0.
        use_bias: whether the four projections add a bias. Defaults to `True`.
        rotary: whether queries and keys are turned by their positions
            (`RotaryPositionEncoding`); for self-attention. Defaults to `False`.

    Call arguments:
        query: (B, T, D).
        value: (B, S, D'), what is attended to.
        key: (B, S, D''). Defaults to `value`.
        attention_mask: boolean (B, S), (B, T, S) or (B, H, T, S), True = may attend.
        use_causal_mask: whether query i sees keys up to i only. Defaults to `False`.
        training: whether dropout is applied.

    Returns:
        (B, T, D). A Keras mask on `value` or `key` forbids their padding, beside the
        explicit mask; one on `query` passes through. A query that may attend
        to nothing gets the output projection of zeros. The weights come from
        `attention_weights`, which takes the same arguments.

    Raises:
        ValueError: sizes are not positive, inputs are not of rank 3, a mask of
            another rank or size.
        TypeError: a mask that is not boolean.

    Example:

    >>> mha = MultiHeadAttention(num_heads=2, key_dim=4)
    >>> x = keras.random.normal((3, 5, 8))
    >>> mha(x, x, use_causal_mask=True).shape
    (3, 5, 8)
    """

    def __init__(
        self, num_heads, key_dim, value_dim=None, dropout=0.0, use_bias=True, rotary=False, **kwargs
    ):
        super().__init__(**kwargs)
        value_dim = key_dim if value_dim is None else value_dim
        for name, size in (
            ("num_heads", num_heads),
            ("key_dim", key_dim),
            ("value_dim", value_dim),
        ):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, but {size} was passed.")
        self.num_heads = num_heads
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.dropout = dropout
        self.use_bias = use_bias
        self.rotary = rotary
        self.supports_masking = True
        self.query_projection = self._projection("query", num_heads * key_dim)
        self.key_projection = self._projection("key", num_heads * key_dim)
        self.value_projection = self._projection("value", num_heads * value_dim)
        self.dropout_layer = layers.Dropout(dropout, dtype=self.dtype_policy)
        if rotary:
            self.rotation = RotaryPositionEncoding(dtype=self.dtype_policy)

    def _projection(self, name, size):
        initializer = keras.initializers.VarianceScaling(0.5, "fan_avg", "uniform")
        return layers.Dense(
            size,
            use_bias=self.use_bias,
            kernel_initializer=initializer,
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, query_shape, value_shape, key_shape=None):
        key_shape = value_shape if key_shape is None else key_shape
        check_ranks(query=query_shape, value=value_shape, key=key_shape)
        self.query_projection.build(query_shape)
        self.key_projection.build(key_shape)
        self.value_projection.build(value_shape)
        if self.rotary:
            self.rotation.build((*query_shape[:-1], self.key_dim))
        self.output_projection = layers.Dense(
            query_shape[-1], use_bias=self.use_bias, dtype=self.dtype_policy, name="output"
        )
        self.output_projection.build((*query_shape[:-1], self.num_heads * self.value_dim))

    def call(
        self,
        query,
        value,
        key=None,
        attention_mask=None,
        use_causal_mask=False,
        training=None,
        value_mask=None,
        key_mask=None,
    ):
        mask = self._mask(query, value, attention_mask, use_causal_mask, value_mask, key_mask)
        keys, values = self.project_key_value(value, key)
        output, _ = self._attend(self._project_query(query), keys, values, mask, training)
        return output

    def attention_weights(self, query, value, key=None, attention_mask=None, use_causal_mask=False):
        """The weights softmax(Q K^T / sqrt(d_k)) of each head, for plots.

        Takes the arguments of a call (masks explicit). Returns (B, H, T, S).
        """
        mask = self._mask(query, value, attention_mask, use_causal_mask)
        keys, values = self.project_key_value(value, key)
        return self._attend(self._project_query(query), keys, values, mask)[1]

    def project_key_value(self, value, key=None, offset=0):
        """Keys (B, H, S, K) and values (B, H, S, W) of `value` (B, S, D') for `attend`.

        Computed once a source, they serve every step of a search. `offset`
        is the position of the first one, used by rotary positions only.
        """
        keys = self._project_heads(self.key_projection, value if key is None else key)
        values = self._project_heads(self.value_projection, value)
        return (self.rotation(keys, offset=offset) if self.rotary else keys), values

    def attend(self, query, keys, values, mask=None):
        """Attends from `query` (B, T, D) to projected keys and values.

        Args:
            query: (B, T, D).
            keys, values: as `project_key_value` returns them.
            mask: boolean (B, S), (B, T, S) or (B, H, T, S); or `None`.

        Returns:
            (B, T, D).
        """
        scores_shape = (query.shape[0], self.num_heads, query.shape[1], keys.shape[2])
        mask = attention_shape(mask, scores_shape)
        return self._attend(self._project_query(query), keys, values, mask)[0]

    def step(self, query, cache, position):
        """Self-attention of one new token a row to itself and its cached past.

        Args:
            query: (B, 1, D), the new tokens.
            cache: pair of keys (B, H, t, K) and values (B, H, t, W) of the past.
            position: t as an integer scalar, the new tokens' position.

        Returns:
            Output (B, 1, D) and the cache with the new token at its end.
        """
        keys, values = self.project_key_value(query, offset=position)
        keys = ops.concatenate([cache[0], keys], axis=2)  # (B, H, t+1, K)
        values = ops.concatenate([cache[1], values], axis=2)  # (B, H, t+1, W)
        output, _ = self._attend(self._project_query(query, offset=position), keys, values)
        return output, (keys, values)

    def _mask(self, query, value, attention_mask, use_causal_mask, value_mask=None, key_mask=None):
        causal = causal_mask(ops.shape(query)[1]) if use_causal_mask else None
        masks = (attention_mask, causal, value_mask, key_mask)
        scores_shape = (query.shape[0], self.num_heads, query.shape[1], value.shape[1])
        return combine_masks(*(attention_shape(mask, scores_shape) for mask in masks))

    def _project_query(self, query, offset=0):
        queries = self._project_heads(self.query_projection, query)  # (B, H, T, K)
        return self.rotation(queries, offset=offset) if self.rotary else queries

    def _attend(self, queries, keys, values, mask=None, training=None):
        dropout = partial(self.dropout_layer, training=training) if self.dropout else None
        heads, weights = scaled_dot_product_attention(queries, keys, values, mask, dropout)
        return self._project_output(heads), weights

    def _project_heads(self, projection, x):
        """(B, T, D) -> (B, H, T, K). One row a token: TensorFlow fuses product and bias."""
        rows = projection(ops.reshape(x, (-1, x.shape[-1])))  # (B T, H K)
        size = rows.shape[-1] // self.num_heads
        heads = ops.reshape(rows, (-1, ops.shape(x)[1], self.num_heads, size))  # (B, T, H, K)
        return ops.transpose(heads, (0, 2, 1, 3))

    def _project_output(self, heads):
        """(B, H, T, W) -> (B, T, D)."""
        joined = ops.transpose(heads, (0, 2, 1, 3))  # (B, T, H, W)
        rows = ops.reshape(joined, (-1, self.num_heads * self.value_dim))  # (B T, H W)
        output = self.output_projection(rows)  # (B T, D)
        return ops.reshape(output, (-1, ops.shape(heads)[2], output.shape[-1]))

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        return query_shape

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "rotary": self.rotary,
        }

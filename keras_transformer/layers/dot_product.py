"""Scaled dot-product attention (section 3.2.1 of the paper).

Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V.

Shapes: T target (query) length, S source (key) length, K key size d_k, U value size d_v; "..." are
any axes before them.
"""

from keras import ops

# Added to the scores of forbidden pairs: the float32 softmax then gives them exactly 0.
FORBIDDEN = -1e9


def masked_softmax(scores, mask=None, attention_bias=None):
    """Softmax of scores (..., T, S) over the last axis, in float32.

    Entries that the boolean `mask` forbids are exactly 0, and so is a row with none allowed.
    `attention_bias` is added to the scores: `FORBIDDEN` at some entries, never at a whole row.
    """
    scores = ops.cast(scores, "float32")
    # Biases and masks are subtracted, for TensorFlow fuses "product + bias": on CPUs that takes 15
    # to 130 times as long where the bias is one for the whole batch. It fuses `x - (-b)`, too.
    if attention_bias is not None:
        scores = scores - ops.cast(attention_bias, "float32") * -1.0
    # Keras warns of a softmax over one entry, which a first step rightly has.
    softmax = ops.softmax if scores.shape[-1] != 1 else ops.ones_like
    if mask is None:
        return softmax(scores)
    # On CPUs this is several times faster than selecting elementwise. One factor a row then zeroes
    # the rows that have nothing to attend to.
    weights = softmax(scores - ops.where(mask, 0.0, -FORBIDDEN))
    return weights * ops.cast(ops.any(mask, axis=-1, keepdims=True), "float32")


def scaled_dot_product_attention(query, key, value, mask=None, dropout=None, attention_bias=None):
    """softmax(Q K^T / sqrt(d_k)) V (section 3.2.1, equation 1).

    The scale keeps the variance of q . k at 1 when the components of q and k have
    variance 1; without it large d_k would push the softmax to where gradients vanish.

    Args:
        query, key, value: Q (..., T, K), K (..., S, K), V (..., S, U).
        mask: boolean, broadcasts to (..., T, S), True = may attend; or `None`.
        dropout: function applied to the weights before they meet V; or `None`.
        attention_bias: float, broadcasts to (..., T, S), added to the scores; or `None`.

    Returns:
        Output (..., T, U) and weights (..., T, S), both in the dtype of `value`; the softmax
        runs in float32. A query whose keys are all forbidden gets zeros.

    Example:

    >>> q = keras.ops.ones((1, 2, 4))
    >>> output, weights = scaled_dot_product_attention(q, q, q)
    >>> weights[0]
    array([[0.5, 0.5],
           [0.5, 0.5]], dtype=float32)
    """
    scale = ops.cast(query.shape[-1] ** -0.5, query.dtype)
    scores = ops.matmul(query * scale, ops.swapaxes(key, -1, -2))  # (..., T, S)
    weights = ops.cast(masked_softmax(scores, mask, attention_bias), value.dtype)
    return ops.matmul(dropout(weights) if dropout else weights, value), weights

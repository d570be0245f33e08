"""The encoder's and the decoder's layer (section 3.1 of the paper).

Shapes: B batch, T target length, S source length, D d_model.
"""

import keras
from keras import layers

from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.checks import check_heads, check_ranks
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.lost_masks import MaskReader


class _Block(MaskReader):
    """What the two blocks share: arguments, self-attention, feed-forward network, residuals."""

    def __init__(
        self, num_heads, d_ff, dropout=0.1, activation="relu", norm_first=False, *, key_dim=None,
        value_dim=None, attention_dropout=0.0, use_bias=False, positions=None, epsilon=1e-5,
        **kwargs,
    ):  # fmt: skip
        if kwargs.pop("rotary", False):  # the earlier spelling, in saved files too
            positions = "rotary"
        super().__init__(**kwargs)
        self.num_heads, self.d_ff, self.dropout = num_heads, d_ff, dropout
        self.key_dim, self.value_dim, self.attention_dropout = key_dim, value_dim, attention_dropout
        self.norm_first, self.use_bias, self.epsilon = norm_first, use_bias, epsilon
        self._positions = keras.saving.serialize_keras_object(positions)
        self.supports_masking = True
        dtype = self.dtype_policy
        self.feed_forward = FeedForward(d_ff, activation, dtype=dtype, name="feed_forward")
        self.dropout_layer = layers.Dropout(dropout, dtype=dtype)

    def _attention(self, name, d_model, positions=None):
        check_heads(d_model, self.num_heads, self.key_dim)
        key_dim = d_model // self.num_heads if self.key_dim is None else self.key_dim
        return MultiHeadAttention(
            self.num_heads, key_dim, self.value_dim, self.attention_dropout, self.use_bias,
            positions, dtype=self.dtype_policy, name=name,
        )  # fmt: skip

    def _norm(self, name, input_shape):
        norm = layers.LayerNormalization(epsilon=self.epsilon, dtype=self.dtype_policy, name=name)
        norm.build(input_shape)
        return norm

    def build(self, input_shape):
        check_ranks(inputs=input_shape)
        self.self_attention = self._self_attention(input_shape)
        self.self_attention_norm = self._norm("self_attention_norm", input_shape)
        self.feed_forward.build(input_shape)
        self.feed_forward_norm = self._norm("feed_forward_norm", input_shape)

    def _self_attention(self, input_shape):
        attention = self._attention("self_attention", input_shape[-1], self._positions)
        attention.build(input_shape, input_shape)
        return attention

    def _attend_self(self, x, mask, causal, training):
        options = {"use_causal_mask": causal, "training": training}
        return self.self_attention(x, x, attention_mask=mask, **options)

    def residual(self, x, sublayer, norm, training=None):
        """LayerNorm(x + Dropout(Sublayer(x))) (sections 3.1 and 5.4).

        With `norm_first` the pre-norm variant x + Dropout(Sublayer(LayerNorm(x))).
        """
        if self.norm_first:
            return x + self.dropout_layer(sublayer(norm(x)), training=training)
        return norm(x + self.dropout_layer(sublayer(x), training=training))

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        names = ("num_heads", "d_ff", "dropout", "norm_first", "key_dim", "value_dim")
        names += ("attention_dropout", "use_bias", "epsilon")
        return {
            **super().get_config(),
            **{name: getattr(self, name) for name in names},
            "activation": keras.activations.serialize(self.feed_forward.activation),
            "positions": self._positions,
        }


@keras.saving.register_keras_serializable("keras_transformer")
class EncoderBlock(_Block):
    """Self-attention, then a feed-forward network (section 3.1, "Encoder").

    Each of the two is wrapped as LayerNorm(x + Dropout(Sublayer(x))). With
    `use_causal_mask` it is the block of a decoder-only model.

    Weights: `self_attention/...` (see `MultiHeadAttention`), `feed_forward/...` (see
    `FeedForward`), and `gamma`, `beta` (D,) of `self_attention_norm` and `feed_forward_norm`.

    Args:
        num_heads: h, number of heads.
        d_ff: size of the feed-forward network's hidden layer.
        dropout: rate on each sublayer's output. Defaults to 0.1.
        activation: of the feed-forward network. Defaults to "relu".
        norm_first: `False` for the paper's post-norm, `True` for pre-norm.
        key_dim: d_k. Defaults to d_model / num_heads.
        value_dim: d_v. Defaults to `key_dim`.
        attention_dropout: rate on the attention weights. Defaults to 0.
        use_bias: whether attention projections add biases. Defaults to `False`: the paper's are
            plain matrices.
        positions: a position encoding inside self-attention, such as "rotary". Defaults to `None`.
        epsilon: of the layer norms. Defaults to 1e-5.

    Call arguments:
        inputs: (B, T, D).
        attention_mask: boolean (B, T) or (B, T, T), True = may attend; a Keras mask on
            `inputs` counts beside it.
        use_causal_mask: whether position i sees positions up to i only.
        training: whether dropout is applied.

    Returns:
        (B, T, D). A Keras mask passes through.

    Raises:
        ValueError: rank is not 3, or `num_heads` does not divide D and `key_dim` is not set; or a
            functional model's Keras mask was lost on the way here.

    Example:

    >>> x = keras.random.normal((3, 5, 8))
    >>> EncoderBlock(num_heads=2, d_ff=16)(x).shape
    (3, 5, 8)
    """

    def call(self, inputs, attention_mask=None, use_causal_mask=False, training=None):
        def attend(x):
            return self._attend_self(x, attention_mask, use_causal_mask, training)

        x = self.residual(inputs, attend, self.self_attention_norm, training)
        return self.residual(x, self.feed_forward, self.feed_forward_norm, training)


@keras.saving.register_keras_serializable("keras_transformer")
class DecoderBlock(_Block):
    """Masked self-attention, attention to the encoder, feed-forward (section 3.1, "Decoder").

    Each of the three is wrapped as LayerNorm(x + Dropout(Sublayer(x))). Self-attention is
    causal: position i sees positions up to i only.

    Weights: those of `EncoderBlock`, and `cross_attention/...`, `cross_attention_norm/...`.
    Arguments and errors are those of `EncoderBlock`.

    Call arguments:
        inputs: (B, T, D), the target.
        memory: (B, S, D'), the encoder's output.
        attention_mask: boolean (B, T) or (B, T, T) for self-attention, beside the causal
            mask; a Keras mask on `inputs` counts too.
        memory_mask: boolean (B, S) or (B, T, S) for attention to `memory`. Defaults to
            the Keras mask of `memory`.
        training: whether dropout is applied.

    Returns:
        (B, T, D). The Keras mask of `inputs` passes through.

    Example:

    >>> x, memory = keras.random.normal((3, 5, 8)), keras.random.normal((3, 7, 8))
    >>> DecoderBlock(num_heads=2, d_ff=16)(x, memory).shape
    (3, 5, 8)
    """

    reads, explicit_mask = ("memory",), "memory_mask"

    def build(self, inputs_shape, memory_shape):
        super().build(inputs_shape)
        self.cross_attention = self._attention("cross_attention", inputs_shape[-1])
        self.cross_attention.build(inputs_shape, memory_shape)
        self.cross_attention_norm = self._norm("cross_attention_norm", inputs_shape)

    def call(self, inputs, memory, attention_mask=None, memory_mask=None, training=None):
        def attend_self(x):
            return self._attend_self(x, attention_mask, True, training)

        def attend_memory(x):
            return self.cross_attention(x, memory, attention_mask=memory_mask, training=training)

        x = self.residual(inputs, attend_self, self.self_attention_norm, training)
        x = self.residual(x, attend_memory, self.cross_attention_norm, training)
        return self.residual(x, self.feed_forward, self.feed_forward_norm, training)

    def memory_weights(self, inputs, memory, attention_mask=None, memory_mask=None):
        """The weights of each head (B, H, T, S) with which this block attends to `memory`.

        Takes a call's arguments, without dropout. A Keras mask of `memory` does not count here.
        """
        found = []

        def attend_self(x):
            return self._attend_self(x, attention_mask, True, False)

        def attend_memory(x):
            weights = self.cross_attention.attention_weights
            found.append(weights(x, memory, attention_mask=memory_mask))
            return x

        x = self.residual(inputs, attend_self, self.self_attention_norm, False)
        self.residual(x, attend_memory, self.cross_attention_norm, False)
        return found[0]

    def compute_output_shape(self, inputs_shape, memory_shape=None):
        return inputs_shape

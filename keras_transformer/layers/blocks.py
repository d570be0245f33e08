"""The encoder's and the decoder's layer (section 3.1 of the paper).

Shapes: B batch, T target length, S source length, D d_model.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers

from keras_transformer.layers.attention import MultiHeadAttention, append
from keras_transformer.layers.checks import check_heads, check_ranks
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.lost_masks import MaskReader
from keras_transformer.layers.nested import NestedLayer


class _Block(NestedLayer, MaskReader):
    """Arguments, sublayers and residual connections that the blocks share."""

    recurrent = False  # whether self-attention keeps one state instead of keys and values

    def __init__(
        self, num_heads, d_ff, dropout=0.1, activation="relu", norm_first=False, *, key_dim=None,
        value_dim=None, attention_dropout=0.0, use_bias=False, positions=None, epsilon=1e-5,
        **kwargs,
    ):  # fmt: skip
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

    # Each sublayer computes LayerNorm(x + Dropout(Sublayer(x))) (sections 3.1 and 5.4); with
    # `norm_first` it computes x + Dropout(Sublayer(LayerNorm(x))).

    def _before(self, norm, x):
        """The input of a sublayer: x, or LayerNorm(x) with `norm_first`."""
        return norm(x) if self.norm_first else x

    def _after(self, norm, x, output, training=None):
        """LayerNorm(x + Dropout(output)), without the norm with `norm_first`."""
        x = x + self.dropout_layer(output, training=training)
        return x if self.norm_first else norm(x)

    def _feed_forward(self, x, training=None):
        norm = self.feed_forward_norm
        return self._after(norm, x, self.feed_forward(self._before(norm, x)), training)

    def compute_output_shape(self, input_shape):
        return input_shape

    def compute_output_spec(self, inputs, *args, **options):
        output = super().compute_output_spec(inputs, *args, **options)
        if not options.get("return_attention_scores"):
            return output
        shapes = self._scores_shapes(inputs, *args, **options)
        dtype = self.compute_dtype
        return output, {name: keras.KerasTensor(shape, dtype) for name, shape in shapes.items()}

    def _scores_shapes(self, inputs, **options):
        length = inputs.shape[1]
        return {"self": (inputs.shape[0], self.num_heads, length, length)}

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
        return_attention_scores: whether to return the attention weights, too. Defaults to `False`.

    Returns:
        (B, T, D); or a pair of it and a dict of attention weights, "self" (B, H, T, T). A Keras
        mask passes through.

    Raises:
        ValueError: rank is not 3, or `num_heads` does not divide D and `key_dim` is not set; or a
            functional model's Keras mask was lost on the way here.

    Example:

    >>> x = keras.random.normal((3, 5, 8))
    >>> EncoderBlock(num_heads=2, d_ff=16)(x).shape
    (3, 5, 8)
    """

    def build(self, input_shape):
        super().build(input_shape)
        self.restore_sublayers()

    def call(
        self, inputs, attention_mask=None, use_causal_mask=False, training=None,
        return_attention_scores=False,
    ):  # fmt: skip
        norm = self.self_attention_norm
        x = self._before(norm, inputs)
        x, weights = self.self_attention(
            x, x, attention_mask=attention_mask, use_causal_mask=use_causal_mask,
            training=training, return_attention_scores=True,
        )  # fmt: skip
        x = self._feed_forward(self._after(norm, inputs, x, training), training)
        return (x, {"self": weights}) if return_attention_scores else x

    def step(
        self, inputs: Any, cache: Any, position: Any, attention_bias: Any = None,
        put: Callable[[Any, Any], Any] = append,
    ) -> tuple[Any, Any]:  # fmt: skip
        """One new token of each hypothesis, as `call` computes it with `use_causal_mask`.

        Args:
            inputs: (B, W, D), the new tokens.
            cache, position, attention_bias, put: as in `MultiHeadAttention.step`.

        Returns:
            Outputs (B, W, D), and the cache with the new tokens.
        """
        norm = self.self_attention_norm
        x = self._before(norm, inputs)
        x, cache = self.self_attention.step(x, cache, position, attention_bias, put)
        return self._feed_forward(self._after(norm, inputs, x)), cache


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
        return_attention_scores: whether to return the attention weights, too. Defaults to `False`.

    Returns:
        (B, T, D); or a pair of it and a dict of attention weights, "self" (B, H, T, T) and "cross"
        (B, H, T, S). The Keras mask of `inputs` passes through.

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
        self.restore_sublayers()

    def call(
        self, inputs, memory, attention_mask=None, memory_mask=None, training=None,
        return_attention_scores=False,
    ):  # fmt: skip
        norm = self.self_attention_norm
        x, scores = self._attend_self(self._before(norm, inputs), attention_mask, training)
        inputs = self._after(norm, inputs, x, training)

        norm = self.cross_attention_norm
        x, scores["cross"] = self.cross_attention(
            self._before(norm, inputs), memory, attention_mask=memory_mask,
            training=training, return_attention_scores=True,
        )  # fmt: skip
        x = self._feed_forward(self._after(norm, inputs, x, training), training)
        return (x, scores) if return_attention_scores else x

    def step(
        self, inputs: Any, memory: tuple[Any, Any], memory_mask: Any, cache: Any, position: Any,
        attention_bias: Any = None, put: Callable[[Any, Any], Any] = append,
    ) -> tuple[Any, Any]:  # fmt: skip
        """One new token of each hypothesis; see `EncoderBlock.step`.

        Args:
            inputs: (B, W, D), the new tokens.
            memory: keys (B, H, S, K) and values (B, H, S, U), as `project_key_value` of
                `cross_attention` returns them.
            memory_mask: boolean (B, S), or `None`.
            cache, position, attention_bias, put: as in `EncoderBlock.step`.
        """
        norm = self.self_attention_norm
        x = self._before(norm, inputs)
        x, cache = self.self_attention.step(x, cache, position, attention_bias, put)
        inputs = self._after(norm, inputs, x)

        norm = self.cross_attention_norm
        x = self.cross_attention.attend(self._before(norm, inputs), *memory, mask=memory_mask)
        return self._feed_forward(self._after(norm, inputs, x)), cache

    def _attend_self(self, x, attention_mask, training):
        x, weights = self.self_attention(
            x, x, attention_mask=attention_mask, use_causal_mask=True,
            training=training, return_attention_scores=True,
        )  # fmt: skip
        return x, {"self": weights}

    def compute_output_shape(self, inputs_shape, memory_shape=None):
        return inputs_shape

    def _scores_shapes(self, inputs, memory, **options):
        scores = super()._scores_shapes(inputs)
        cross = (inputs.shape[0], self.num_heads, inputs.shape[1], memory.shape[1])
        return {**scores, "cross": cross}

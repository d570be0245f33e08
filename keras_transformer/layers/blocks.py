"""The blocks of encoder and decoder, and their feed-forward network (section 3 of the paper).

Shapes: B batch, T target length, S source length, W beam width, D d_model, F d_ff.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
from keras import layers, ops

from keras_transformer.layers.attention import MultiHeadAttention, append
from keras_transformer.layers.base import BaseLayer
from keras_transformer.layers.checks import check_positive, check_ranks
from keras_transformer.layers.positions import PositionEncoding
from keras_transformer.types import Shape, Tensor


@keras.saving.register_keras_serializable("keras_transformer")
def gelu_tanh(x: Tensor) -> Tensor:
    """Computes GELU approximated by tanh, as in GPT-2 (arXiv 1606.08415)."""
    return keras.activations.gelu(x, approximate=True)


@keras.saving.register_keras_serializable("keras_transformer")
def gelu_sigmoid(x: Tensor) -> Tensor:
    """Computes GELU approximated by x sigmoid(1.702 x) (arXiv 1606.08415, section 2)."""
    return x * ops.sigmoid(1.702 * x)


@keras.saving.register_keras_serializable("keras_transformer")
class FeedForward(BaseLayer):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, the same at each position (section 3.3).

    Weights: `hidden/kernel` (D, F), `output/kernel` (F, D), and with `use_bias` `hidden/bias` (F,)
    and `output/bias` (D,).

    Args:
        d_ff: F, size of the hidden layer. The paper uses 2048.
        activation: name of the activation, or a function. Defaults to "relu".
        use_bias: whether the products add a bias. Defaults to `True`.

    Call arguments:
        inputs: (B, T, D).

    Returns:
        (B, T, D). A Keras mask passes through.

    Raises:
        ValueError: `d_ff` is not positive.

    Example:

    >>> FeedForward(d_ff=16)(keras.ops.ones((2, 3, 4))).shape
    (2, 3, 4)
    """

    gate: layers.Dense | None = None

    def __init__(
        self, d_ff: int, activation: Any = "relu", use_bias: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_positive(d_ff=d_ff)
        self.d_ff: int = int(d_ff)
        self.use_bias: bool = use_bias
        self.activation: Any = keras.activations.get(activation)
        self.hidden: layers.Dense = self._dense("hidden", self.d_ff, self.activation)

    def _dense(self, name: str, size: int, activation: Any = None) -> layers.Dense:
        return layers.Dense(size, activation, self.use_bias, dtype=self.dtype_policy, name=name)

    def build(self, input_shape: Shape) -> None:
        self.hidden.build(input_shape)
        self.projection: layers.Dense = self._dense("output", input_shape[-1])
        self.projection.build((*input_shape[:-1], self.d_ff))
        self.restore_sublayers()

    def call(self, inputs: Tensor) -> Tensor:
        # With one row per token, TensorFlow fuses product, bias and activation.
        rows = ops.reshape(inputs, (-1, inputs.shape[-1]))  # (B T, D)
        hidden = self.hidden(rows)  # (B T, F)
        if self.gate is not None:
            hidden = hidden * self.gate(rows)
        return ops.reshape(self.projection(hidden), ops.shape(inputs))

    def get_config(self) -> dict[str, Any]:
        activation = keras.activations.serialize(self.activation)
        config = {"d_ff": self.d_ff, "activation": activation, "use_bias": self.use_bias}
        return {**super().get_config(), **config}


@keras.saving.register_keras_serializable("keras_transformer")
class GatedFeedForward(FeedForward):
    """FFN(x) = (activation(x W_1 + b_1) * (x V + c)) W_2 + b_2, a gated linear unit.

    With GELU it is the GEGLU of T5 1.1 and ModernBERT, with SiLU the SwiGLU (arXiv 2002.05202).

    Weights: the weights of `FeedForward`; `gate/kernel` (D, F), which is V, and with `use_bias`
    `gate/bias` (F,).

    Args:
        d_ff: F, size of the hidden layer.
        activation: name of the activation, or a function. Defaults to "gelu".
        use_bias: whether the products add a bias. Defaults to `True`.

    Call arguments:
        inputs: (B, T, D).

    Returns:
        (B, T, D). A Keras mask passes through.

    Raises:
        ValueError: `d_ff` is not positive.

    Example:

    >>> network = GatedFeedForward(d_ff=16, use_bias=False)
    >>> EncoderBlock(num_heads=2, feed_forward=network)(keras.ops.ones((2, 3, 4))).shape
    (2, 3, 4)
    """

    def __init__(
        self, d_ff: int, activation: Any = "gelu", use_bias: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(d_ff, activation, use_bias, **kwargs)
        self.gate = self._dense("gate", self.d_ff)

    def build(self, input_shape: Shape) -> None:
        self.gate.build(input_shape)
        super().build(input_shape)


NORMS: dict[str, type[keras.Layer]] = {
    "layer": layers.LayerNormalization,
    "rms": layers.RMSNormalization,
}


@dataclass(frozen=True)
class BlockArguments:
    """Arguments of a block, which models hand down to it. `EncoderBlock` documents them.

    Layers are stored as their configurations. `d_ff` and `activation` are `None` if `feed_forward`
    is a layer, and `epsilon` if `norm` is one.
    """

    num_heads: int
    d_ff: int | None
    dropout: float
    activation: Any
    norm_first: bool | str
    key_dim: int | None
    value_dim: int | None
    attention_dropout: float
    use_bias: bool
    positions: Any
    epsilon: float | None
    feed_forward: Any
    norm: Any

    def __post_init__(self) -> None:
        for name in ("positions", "feed_forward", "norm"):
            value = getattr(self, name)
            value = [*value] if isinstance(value, tuple) else value
            object.__setattr__(self, name, keras.saving.serialize_keras_object(value))
        if self.norm_first not in (False, True, "feed_forward"):
            raise ValueError(
                f'norm_first must be False, True or "feed_forward", but {self.norm_first!r} was '
                "passed."
            )
        others = {"feed_forward": ("d_ff", "activation"), "norm": ("epsilon",)}
        for name in others:
            given = [other for other in others[name] if getattr(self, other) is not None]
            if given and isinstance(getattr(self, name), dict):
                raise ValueError(
                    f"{' and '.join(given)} would have no effect, because {name} is a layer with "
                    f"arguments of its own. Leave {' and '.join(given)} out."
                )
        defaults = {"d_ff": 2048, "activation": "relu"} if self.feed_forward is None else {}
        defaults |= {"epsilon": 1e-5} if isinstance(self.norm, str) else {}
        for name in defaults:
            if getattr(self, name) is None:
                object.__setattr__(self, name, defaults[name])

    def make_feed_forward(self, **options: Any) -> keras.Layer:
        """Makes the feed-forward network. `options` are its `name` and `dtype`."""
        if self.feed_forward is None:
            return FeedForward(self.d_ff, self.activation, **options)
        return _copied(self.feed_forward, "feed_forward", "GatedFeedForward(d_ff=2048)", options)

    def make_norm(self, **options: Any) -> keras.Layer:
        """Makes a norm. `options` are its `name` and `dtype`."""
        if isinstance(self.norm, str) and self.norm in NORMS:
            norm = NORMS[self.norm](epsilon=self.epsilon, **options)
        else:
            known = '"layer", "rms" or keras.layers.LayerNormalization(center=False)'
            norm = _copied(self.norm, "norm", known, options)
        norm.supports_masking = True  # RMSNormalization of Keras would drop the mask
        return norm

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments as JSON values."""
        activation = self.activation
        if activation is not None:
            activation = keras.activations.serialize(keras.activations.get(activation))
        return {**vars(self), "activation": activation}


def _copied(config: Any, name: str, known: str, options: dict[str, Any]) -> keras.Layer:
    """Returns a new layer of a configuration, with another name and dtype."""
    layer = keras.saving.deserialize_keras_object(config) if isinstance(config, dict) else config
    if not isinstance(layer, keras.Layer):
        raise ValueError(f"{name} must be a layer, such as {known}, but {layer!r} was passed.")
    return layer.from_config({**layer.get_config(), **options})


class _Block(BaseLayer):
    """Arguments, sublayers and residual connections that the blocks share."""

    recurrent: bool = False  # whether self-attention keeps one state instead of keys and values

    def __init__(
        self,
        num_heads: int,
        d_ff: int | None = None,
        dropout: float = 0.1,
        activation: Any = None,
        norm_first: bool | str = False,
        *,
        key_dim: int | None = None,
        value_dim: int | None = None,
        attention_dropout: float = 0.0,
        use_bias: bool = False,
        positions: Any = None,
        epsilon: float | None = None,
        feed_forward: Any = None,
        norm: Any = "layer",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads: int = num_heads
        self.arguments: BlockArguments = BlockArguments(
            num_heads,
            d_ff,
            dropout,
            activation,
            norm_first,
            key_dim,
            value_dim,
            attention_dropout,
            use_bias,
            positions,
            epsilon,
            feed_forward,
            norm,
        )
        dtype = self.dtype_policy
        self.feed_forward = self.arguments.make_feed_forward(dtype=dtype, name="feed_forward")
        self.dropout_layer = layers.Dropout(dropout, dtype=dtype)
        self.shared_positions: PositionEncoding | None = None  # of all blocks of a stack

    def _make_attention(self, name: str, d_model: int, positions: Any = None) -> MultiHeadAttention:
        given, key_dim = self.arguments, self.arguments.key_dim
        if key_dim is None:
            if given.num_heads < 1 or d_model % given.num_heads:
                raise ValueError(
                    f"d_model={d_model} does not divide into num_heads={given.num_heads} heads. "
                    "Change one of them, or set key_dim."
                )
            key_dim = d_model // given.num_heads
        return MultiHeadAttention(
            given.num_heads,
            key_dim,
            given.value_dim,
            given.attention_dropout,
            given.use_bias,
            positions,
            dtype=self.dtype_policy,
            name=name,
        )

    def _make_norm(self, name: str, input_shape: Shape) -> keras.Layer:
        norm = self.arguments.make_norm(dtype=self.dtype_policy, name=name)
        norm.build(input_shape)
        return norm

    def build(self, input_shape: Shape) -> None:
        check_ranks(inputs=input_shape)
        self.self_attention = self._make_self_attention(input_shape)
        if self.arguments.norm_first == "feed_forward":
            self.self_attention_norm = layers.Identity(dtype=self.dtype_policy.compute_dtype)
        else:
            self.self_attention_norm = self._make_norm("self_attention_norm", input_shape)
        self.feed_forward.build(input_shape)
        self.feed_forward_norm = self._make_norm("feed_forward_norm", input_shape)

    def _make_self_attention(self, input_shape: Shape) -> Any:
        """Makes and builds the layer. `RecurrentDecoderBlock` overrides this."""
        positions = self.shared_positions or self.arguments.positions
        attention = self._make_attention("self_attention", input_shape[-1], positions)
        attention.build(input_shape, input_shape)
        return attention

    # Each sublayer computes LayerNorm(x + Dropout(Sublayer(x))) (sections 3.1 and 5.4); with
    # `norm_first` it computes x + Dropout(Sublayer(LayerNorm(x))).

    def _before(self, norm: keras.Layer, x: Tensor) -> Tensor:
        """Returns the input of a sublayer: x, or LayerNorm(x) with `norm_first`."""
        return norm(x) if self.arguments.norm_first else x

    def _after(self, norm: keras.Layer, x: Tensor, output: Tensor) -> Tensor:
        """Returns LayerNorm(x + Dropout(output)), or the sum alone with `norm_first`."""
        x = x + self.dropout_layer(output)
        return x if self.arguments.norm_first else norm(x)

    def _feed_forward(self, x: Tensor) -> Tensor:
        norm = self.feed_forward_norm
        return self._after(norm, x, self.feed_forward(self._before(norm, x)))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), **self.arguments.get_config()}


@keras.saving.register_keras_serializable("keras_transformer")
class EncoderBlock(_Block):
    """Self-attention, then a feed-forward network (section 3.1, "Encoder").

    Each of the two is wrapped as LayerNorm(x + Dropout(Sublayer(x))). With `use_causal_mask` this
    is the block of a decoder-only model.

    Weights: `self_attention/...` (see `MultiHeadAttention`), `feed_forward/...` (see
    `FeedForward`), and `gamma`, `beta` (D,) of `self_attention_norm` and `feed_forward_norm`.

    Args:
        num_heads: h, number of heads.
        d_ff: F, size of the feed-forward network's hidden layer. Defaults to 2048.
        dropout: rate on each sublayer's output. Defaults to 0.1.
        activation: of the feed-forward network. Defaults to "relu".
        norm_first: `False` for the paper's post-norm, `True` for pre-norm, "feed_forward" for
            pre-norm of inputs that are normalised already: self-attention then has no norm.
        key_dim: d_k. Defaults to d_model / num_heads.
        value_dim: d_v. Defaults to `key_dim`.
        attention_dropout: rate on the attention weights. Defaults to 0.
        use_bias: whether attention projections add biases. Defaults to `False`, as in the paper.
        positions: a position encoding inside self-attention, such as "rotary". Defaults to `None`.
        epsilon: of the norms. Defaults to 1e-5.
        feed_forward: a layer in place of the paper's network, such as `GatedFeedForward(2048)`; it
            is copied, and replaces `d_ff` and `activation`. Defaults to `None`.
        norm: "layer", "rms" (without the mean: arXiv 1910.07467) or a layer such as
            `keras.layers.LayerNormalization(center=False)`, which is copied and replaces `epsilon`.
            Defaults to "layer".

    Call arguments:
        inputs: (B, T, D).
        attention_mask: boolean (B, T) or (B, T, T), True = may attend. It is combined with the
            Keras mask of `inputs`.
        use_causal_mask: whether position i attends to positions up to i only.
        training: whether to apply dropout.
        return_attention_scores: whether to also return the attention weights. Defaults to `False`.

    Returns:
        (B, T, D); or a pair of it and a dict of attention weights, "self" (B, H, T, T). A Keras
        mask passes through.

    Raises:
        ValueError: `inputs` is not of rank 3, `num_heads` does not divide D while `key_dim` is not
            set, the Keras mask of `inputs` was lost, `feed_forward` or `norm` is no layer, or an
            argument has no effect together with it.

    Example:

    >>> x = keras.random.normal((3, 5, 8))
    >>> EncoderBlock(num_heads=2, d_ff=16)(x).shape
    (3, 5, 8)
    """

    reads = {"inputs": "attention_mask"}

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        self.restore_sublayers()

    def call(
        self,
        inputs: Tensor,
        attention_mask: Tensor | None = None,
        use_causal_mask: bool = False,
        training: bool | None = None,  # Keras passes it on to the sublayers
        return_attention_scores: bool = False,
    ) -> Any:
        norm = self.self_attention_norm
        x = self._before(norm, inputs)
        x, weights = self.self_attention(
            x,
            x,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
            return_attention_scores=True,
        )
        x = self._feed_forward(self._after(norm, inputs, x))
        return (x, {"self": weights}) if return_attention_scores else x

    def step(
        self,
        inputs: Tensor,
        cache: Any,
        position: int | Tensor,
        attention_bias: Tensor | None = None,
        add: Callable[[Tensor, Tensor], Tensor] = append,
    ) -> tuple[Tensor, Any]:
        """Computes one new token of each hypothesis, as `call` does with `use_causal_mask`.

        Args:
            inputs: (B, W, D), the new tokens.
            cache, position, attention_bias, add: as in `MultiHeadAttention.step`.

        Returns:
            Outputs (B, W, D), and the cache with the new tokens.
        """
        norm = self.self_attention_norm
        x = self._before(norm, inputs)
        x, cache = self.self_attention.step(x, cache, position, attention_bias, add)
        return self._feed_forward(self._after(norm, inputs, x)), cache


@keras.saving.register_keras_serializable("keras_transformer")
class DecoderBlock(_Block):
    """Masked self-attention, attention to the encoder, feed-forward (section 3.1, "Decoder").

    Each of the three is wrapped as LayerNorm(x + Dropout(Sublayer(x))). Self-attention is causal by
    default: position i attends to positions up to i only. Without the causal mask all positions
    attend to each other, as the object queries of DETR do (arXiv 2005.12872).

    Weights: the weights of `EncoderBlock`, and `cross_attention/...`, `cross_attention_norm/...`.
    It takes the arguments and raises the errors of `EncoderBlock`.

    Call arguments:
        inputs: (B, T, D), the target.
        memory: (B, S, D'), the encoder's output.
        attention_mask: boolean (B, T) or (B, T, T) for self-attention. It is combined with the
            causal mask and the Keras mask of `inputs`.
        memory_mask: boolean (B, S) or (B, T, S) for attention to `memory`. It is combined with the
            Keras mask of `memory`.
        use_causal_mask: whether position i attends to positions up to i only. Defaults to `True`.
        training: whether to apply dropout.
        return_attention_scores: whether to also return the attention weights. Defaults to `False`.

    Returns:
        (B, T, D); or a pair of it and a dict of attention weights, "self" (B, H, T, T) and "cross"
        (B, H, T, S). The Keras mask of `inputs` passes through.

    Example:

    >>> x, memory = keras.random.normal((3, 5, 8)), keras.random.normal((3, 7, 8))
    >>> DecoderBlock(num_heads=2, d_ff=16)(x, memory).shape
    (3, 5, 8)
    """

    reads = {"inputs": "attention_mask", "memory": "memory_mask"}

    def build(self, inputs_shape: Shape, memory_shape: Shape) -> None:
        super().build(inputs_shape)
        self.cross_attention = self._make_attention("cross_attention", inputs_shape[-1])
        self.cross_attention.build(inputs_shape, memory_shape)
        self.cross_attention_norm = self._make_norm("cross_attention_norm", inputs_shape)
        self.restore_sublayers()

    def call(
        self,
        inputs: Tensor,
        memory: Tensor,
        attention_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        use_causal_mask: bool = True,
        training: bool | None = None,  # Keras passes it on to the sublayers
        return_attention_scores: bool = False,
    ) -> Any:
        norm = self.self_attention_norm
        x, scores = self._call_self_attention(
            self._before(norm, inputs), attention_mask, use_causal_mask
        )
        inputs = self._after(norm, inputs, x)

        norm = self.cross_attention_norm
        x, scores["cross"] = self.cross_attention(
            self._before(norm, inputs),
            memory,
            attention_mask=memory_mask,
            return_attention_scores=True,
        )
        x = self._feed_forward(self._after(norm, inputs, x))
        return (x, scores) if return_attention_scores else x

    def step(
        self,
        inputs: Tensor,
        memory_keys_values: tuple[Tensor, Tensor],
        memory_mask: Tensor | None,
        cache: Any,
        position: int | Tensor,
        attention_bias: Tensor | None = None,
        add: Callable[[Tensor, Tensor], Tensor] = append,
        return_attention_scores: bool = False,
    ) -> tuple[Any, ...]:
        """Computes one new token of each hypothesis; see `EncoderBlock.step`.

        Args:
            inputs: (B, W, D), the new tokens.
            memory_keys_values: keys (B, H, S, K) and values (B, H, S, U), from
                `project_key_value` of `cross_attention`.
            memory_mask: boolean (B, S), or `None`.
            cache, position, attention_bias, add: as in `EncoderBlock.step`.
            return_attention_scores: whether to also return the weights of the attention to the
                source. Defaults to `False`.

        Returns:
            Outputs (B, W, D), and the cache with the new tokens; with `return_attention_scores`
            also the weights (B, H, W, S).
        """
        norm = self.self_attention_norm
        x = self._before(norm, inputs)
        x, cache = self.self_attention.step(x, cache, position, attention_bias, add)
        inputs = self._after(norm, inputs, x)

        norm = self.cross_attention_norm
        x = self._before(norm, inputs)
        x, weights = self.cross_attention.attend(x, *memory_keys_values, memory_mask)
        x = self._feed_forward(self._after(norm, inputs, x))
        return (x, cache, weights) if return_attention_scores else (x, cache)

    def _call_self_attention(
        self, x: Tensor, attention_mask: Tensor | None, use_causal_mask: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns outputs and attention weights. `RecurrentDecoderBlock` overrides this."""
        x, weights = self.self_attention(
            x,
            x,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
            return_attention_scores=True,
        )
        return x, {"self": weights}

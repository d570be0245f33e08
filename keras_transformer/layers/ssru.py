"""A recurrent unit that replaces the decoder's self-attention (Kim et al. 2019).

Shapes: B batch, T target length, W beam width, D d_model.
"""

from typing import Any

import keras
from keras import layers, ops

from keras_transformer.layers.base import BaseLayer
from keras_transformer.layers.blocks import DecoderBlock
from keras_transformer.layers.checks import check_ranks
from keras_transformer.layers.masks import combine_masks
from keras_transformer.types import Shape, Tensor

# XLA needs a bound on the rounds of `_running`. This one allows a million positions.
MOST_ROUNDS = 20


@keras.saving.register_keras_serializable("keras_transformer")
class SSRU(BaseLayer):
    """Simpler simple recurrent unit: a gated running mean of all inputs so far.

    z_t = x_t W, g_t = sigmoid(x_t W_f + b_f), c_t = g_t c_(t-1) + (1 - g_t) z_t with c_(-1) = 0,
    output relu(c_t): section 3.1.2 of "From Research to Production and Back" (Kim et al. 2019,
    D19-5632). Position t depends on positions up to t only, as in causal self-attention. The unit
    keeps only the state c_t, so a step of a search costs the same at every position.

    The state is float32 under every dtype policy.

    Weights: `input/kernel` W (D, D), `forget/kernel` W_f (D, D) and `forget/bias` b_f (D,).

    Call arguments:
        inputs: (B, T, D).
        attention_mask: boolean (B, T). The state does not change at positions that are False. It
            is combined with the Keras mask of `inputs`.

    Returns:
        (B, T, D). A Keras mask passes through.

    Raises:
        ValueError: `inputs` is not of rank 3, or `attention_mask` is not of rank 2.

    Example:

    >>> SSRU()(keras.random.normal((3, 5, 8))).shape
    (3, 5, 8)
    """

    def build(self, input_shape: Shape) -> None:
        check_ranks(inputs=input_shape)
        size, dtype = input_shape[-1], self.dtype_policy
        self.input_projection = layers.Dense(size, use_bias=False, dtype=dtype, name="input")
        self.forget_gate = layers.Dense(size, dtype=dtype, name="forget")
        self.input_projection.build(input_shape)
        self.forget_gate.build(input_shape)
        self.restore_sublayers()

    def call(
        self,
        inputs: Tensor,
        attention_mask: Tensor | None = None,
        mask: Tensor | None = None,  # Keras passes its mask of a single input
        inputs_mask: Tensor | None = None,  # and of the first of several inputs
    ) -> Tensor:
        if attention_mask is not None and len(attention_mask.shape) != 2:
            raise ValueError(
                "The mask of a recurrent unit must have shape (B, T), but its shape is "
                f"{tuple(attention_mask.shape)}. The unit has no separate queries and keys."
            )
        gates, updates = self._gates_and_updates(inputs)  # (B, T, D)
        counts = combine_masks(attention_mask, mask, inputs_mask)
        if counts is not None:
            gates = ops.where(counts[..., None], gates, 1.0)
            updates = ops.where(counts[..., None], updates, 0.0)
        return self._output(_running(gates, updates))

    def initial_state(self, batch_size: int | Tensor, beam_width: int) -> Tensor:
        """Returns the state before the first token: zeros (B, W, D)."""
        return ops.zeros((batch_size, beam_width, self.forget_gate.units), "float32")

    def step(self, inputs: Tensor, state: Tensor, *unused: Any) -> tuple[Tensor, Tensor]:
        """Returns outputs and next state of one new token of each hypothesis, both (B, W, D).

        Accepts the other arguments of `MultiHeadAttention.step`, which have no effect here.
        """
        gates, updates = self._gates_and_updates(inputs)
        state = gates * state + updates
        return self._output(state), state

    def _gates_and_updates(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Computes g and (1 - g) z, float32 (B, T, D)."""
        gates = ops.sigmoid(ops.cast(self.forget_gate(inputs), "float32"))
        return gates, (1.0 - gates) * ops.cast(self.input_projection(inputs), "float32")

    def _output(self, states: Tensor) -> Tensor:
        return ops.cast(ops.relu(states), self.compute_dtype)


def _running(gates: Tensor, updates: Tensor) -> Tensor:
    """Computes the states c_t = g_t c_(t-1) + u_t at all positions, from g and u: (B, T, D).

    It takes ceil(log2 T) rounds instead of T steps. Each round joins every stretch of positions to
    the stretch before it, which ends `shift` positions earlier.
    """
    length = ops.shape(updates)[1]

    def join(shift: Tensor, gates: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        earlier = ops.arange(length, dtype="int32") - shift
        exists = (earlier >= 0)[:, None]  # (T, 1)
        earlier = ops.maximum(earlier, 0)
        states = states + ops.where(exists, gates * ops.take(states, earlier, axis=1), 0.0)
        return 2 * shift, gates * ops.where(exists, ops.take(gates, earlier, axis=1), 0.0), states

    variables = 1, gates, updates
    if not isinstance(length, int):  # in a TensorFlow graph
        return ops.while_loop(
            lambda shift, *_: shift < length, join, variables, maximum_iterations=MOST_ROUNDS
        )[2]
    while variables[0] < length:
        variables = join(*variables)
    return variables[2]


@keras.saving.register_keras_serializable("keras_transformer")
class RecurrentDecoderBlock(DecoderBlock):
    """A `DecoderBlock` with an `SSRU` instead of self-attention.

    A search keeps one state (B, W, D) for it instead of all keys and values. It reads positions in
    their order, so `positions` raises `ValueError`. `return_attention_scores` returns "cross" only.

    Weights: the weights of `DecoderBlock`, with the three of `SSRU` below `self_attention/`.
    Otherwise use it like `DecoderBlock`, with an `attention_mask` of shape (B, T).
    `use_causal_mask=False` raises `ValueError`.

    Example:

    >>> x, memory = keras.random.normal((3, 5, 8)), keras.random.normal((3, 7, 8))
    >>> RecurrentDecoderBlock(num_heads=2, d_ff=16)(x, memory).shape
    (3, 5, 8)
    """

    recurrent = True

    def _make_self_attention(self, input_shape: Shape) -> SSRU:
        if (positions := self.arguments.positions) is not None:
            raise ValueError(
                f"positions={positions!r} was passed, but an SSRU has no attention to "
                "add them to. It reads positions in their order: leave positions out."
            )
        unit = SSRU(dtype=self.dtype_policy, name="self_attention")
        unit.build(input_shape)
        return unit

    def _call_self_attention(
        self, x: Tensor, attention_mask: Tensor | None, use_causal_mask: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if not use_causal_mask:
            raise ValueError(
                "An SSRU reads positions from left to right, so use_causal_mask=False is not "
                "possible. Use DecoderBlock."
            )
        return self.self_attention(x, attention_mask=attention_mask), {}

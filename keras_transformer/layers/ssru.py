"""A recurrent unit in the place of the decoder's self-attention (Kim et al. 2019).

Shapes: B batch, T target length, W beam width, D d_model.
"""

from typing import Any

import keras
from keras import layers, ops

from keras_transformer.layers.blocks import DecoderBlock
from keras_transformer.layers.checks import check_ranks
from keras_transformer.layers.masks import combine_masks
from keras_transformer.layers.nested import NestedLayer

# Most rounds of `_running`, enough for a million positions: XLA wants to know.
MOST_ROUNDS = 20


@keras.saving.register_keras_serializable("keras_transformer")
class SSRU(NestedLayer):
    """Simpler simple recurrent unit: a gated running mean of all inputs so far.

    z_t = x_t W, g_t = sigmoid(x_t W_f + b_f), c_t = g_t c_(t-1) + (1 - g_t) z_t with c_(-1) = 0,
    output relu(c_t): section 3.1.2 of "From Research to Production and Back" (Kim et al. 2019,
    D19-5632). Position t sees positions up to t only, as in causal self-attention. All that it
    keeps of them is c_t, so that a step of a search costs the same at every position.

    The state is float32 under every dtype policy.

    Weights: `input/kernel` W (D, D), `forget/kernel` W_f (D, D) and `forget/bias` b_f (D,).

    Call arguments:
        inputs: (B, T, D).
        attention_mask: boolean (B, T); False leaves a position out: the state passes it unchanged.
            A Keras mask on `inputs` counts beside it.

    Returns:
        (B, T, D). A Keras mask passes through.

    Raises:
        ValueError: the rank of the inputs is not 3, or that of the mask not 2.

    Example:

    >>> SSRU()(keras.random.normal((3, 5, 8))).shape
    (3, 5, 8)
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, input_shape):
        check_ranks(inputs=input_shape)
        size, dtype = input_shape[-1], self.dtype_policy
        self.input_projection = layers.Dense(size, use_bias=False, dtype=dtype, name="input")
        self.forget_gate = layers.Dense(size, dtype=dtype, name="forget")
        self.input_projection.build(input_shape)
        self.forget_gate.build(input_shape)
        self.restore_sublayers()

    def call(self, inputs, attention_mask=None, mask=None):
        if attention_mask is not None and len(attention_mask.shape) != 2:
            raise ValueError(
                "The mask of a recurrent unit says which positions count, (B, T), but its shape is "
                f"{tuple(attention_mask.shape)}. It has no queries and keys to mask apart."
            )
        gates, updates = self._gates_and_updates(inputs)  # (B, T, D)
        counts = combine_masks(attention_mask, mask)
        if counts is not None:
            gates = ops.where(counts[..., None], gates, 1.0)
            updates = ops.where(counts[..., None], updates, 0.0)

        return self._output(_running(gates, updates))

    def initial_state(self, batch_size, beam_width):
        """The state before the first token: zeros (B, W, D)."""
        return ops.zeros((batch_size, beam_width, self.forget_gate.units))

    def step(
        self, inputs: Any, state: Any, position: Any = None, attention_bias: Any = None,
        put: Any = None,
    ) -> tuple[Any, Any]:  # fmt: skip
        """The output and the next state of one new token a hypothesis, both (B, W, D).

        The other arguments are those of `MultiHeadAttention.step`. They do not change the result.
        """
        gates, updates = self._gates_and_updates(inputs)
        state = gates * state + updates
        return self._output(state), state

    def _gates_and_updates(self, inputs):
        """g and (1 - g) z, float32 (B, T, D)."""
        gates = ops.sigmoid(ops.cast(self.forget_gate(inputs), "float32"))
        return gates, (1.0 - gates) * ops.cast(self.input_projection(inputs), "float32")

    def _output(self, states):
        return ops.cast(ops.relu(states), self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return input_shape


def _running(gates, updates):
    """The states c_t = g_t c_(t-1) + u_t at all positions, from g and u: (B, T, D).

    In ceil(log2 T) rounds instead of T steps: a round joins each stretch of positions to the one
    before it, which ends `shift` positions earlier.
    """
    length = ops.shape(updates)[1]

    def join(shift, gates, states):
        earlier = ops.arange(length) - shift
        there = (earlier >= 0)[:, None]  # (T, 1)
        earlier = ops.maximum(earlier, 0)
        states = states + ops.where(there, gates * ops.take(states, earlier, axis=1), 0.0)
        return 2 * shift, gates * ops.where(there, ops.take(gates, earlier, axis=1), 0.0), states

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
    """A `DecoderBlock` with an `SSRU` in the place of self-attention.

    Searches keep one state (B, W, D) of it instead of all keys and values. `positions` mean nothing
    to it.

    Weights: those of `DecoderBlock`; below `self_attention/` lie the three of `SSRU`. Arguments,
    call arguments, results and errors are those of `DecoderBlock`; `attention_mask` is (B, T).

    Example:

    >>> x, memory = keras.random.normal((3, 5, 8)), keras.random.normal((3, 7, 8))
    >>> RecurrentDecoderBlock(num_heads=2, d_ff=16)(x, memory).shape
    (3, 5, 8)
    """

    recurrent = True

    def _self_attention(self, input_shape):
        unit = SSRU(dtype=self.dtype_policy, name="self_attention")
        unit.build(input_shape)
        return unit

    def _attend_self(self, x, attention_mask, training):
        return self.self_attention(x, attention_mask=attention_mask), {}

    def _scores_shapes(self, inputs, memory, **options):
        shapes = super()._scores_shapes(inputs, memory)
        return {"cross": shapes["cross"]}

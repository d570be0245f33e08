"""The position-wise feed-forward network (section 3.3 of the paper).

Shapes: B batch, T length, D d_model, F d_ff.
"""

import keras
from keras import layers, ops

from keras_transformer.layers.checks import check_positive
from keras_transformer.layers.nested import NestedLayer


@keras.saving.register_keras_serializable("keras_transformer")
def gelu_tanh(x):
    """GELU, approximated by tanh, as GPT-2 has it (arXiv 1606.08415): an `activation`."""
    return keras.activations.gelu(x, approximate=True)


@keras.saving.register_keras_serializable("keras_transformer")
class FeedForward(NestedLayer):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2, the same at each position (section 3.3).

    Weights: `hidden/kernel` (D, F), `hidden/bias` (F,), `output/kernel` (F, D),
    `output/bias` (D,).

    Args:
        d_ff: F, size of the hidden layer (the paper: 2048).
        activation: name of the activation, or a function. Defaults to "relu".

    Call arguments:
        inputs: (B, T, D).

    Returns:
        (B, T, D). A Keras mask passes through.

    Example:

    >>> FeedForward(d_ff=16)(keras.ops.ones((2, 3, 4))).shape
    (2, 3, 4)
    """

    def __init__(self, d_ff, activation="relu", **kwargs):
        super().__init__(**kwargs)
        check_positive(d_ff=d_ff)
        self.d_ff = d_ff
        self.activation = keras.activations.get(activation)
        self.supports_masking = True
        self.hidden = layers.Dense(
            d_ff, activation=self.activation, dtype=self.dtype_policy, name="hidden"
        )

    def build(self, input_shape):
        self.hidden.build(input_shape)
        self.projection = layers.Dense(input_shape[-1], dtype=self.dtype_policy, name="output")
        self.projection.build((*input_shape[:-1], self.d_ff))
        self.restore_sublayers()

    def call(self, inputs):
        # One row a token: TensorFlow then fuses product, bias and activation.
        rows = ops.reshape(inputs, (-1, inputs.shape[-1]))  # (B T, D)
        return ops.reshape(self.projection(self.hidden(rows)), ops.shape(inputs))

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "d_ff": self.d_ff,
            "activation": keras.activations.serialize(self.activation),
        }

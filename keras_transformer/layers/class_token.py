"""A learned vector in front of a sequence, which then stands for the whole of it.

Shapes: B batch, S length, D d_model.
"""

import keras
from keras import layers, ops

from keras_transformer.layers.checks import check_ranks


@keras.saving.register_keras_serializable("keras_transformer")
class ClassToken(layers.Layer):
    """Puts a learned vector in front of a sequence: BERT's [CLS], ViT's class token.

    Attention lets it collect what a task needs of the other positions, and `y[:, 0]` behind the
    last block is the vector for the classifier. From BERT (arXiv 1810.04805, section 3); for
    images ViT (arXiv 2010.11929, section 3.1). Place it before positions are added.

    Weights: `embedding` (D,), drawn from a normal distribution of standard deviation 0.02.

    Call arguments:
        inputs: (B, S, D).

    Returns:
        (B, S + 1, D), the token first. A Keras mask passes on, one longer: the token itself is
        never masked, so a row of padding only still gives numbers.

    Raises:
        ValueError: inputs are not of rank 3.

    Example:

    >>> ClassToken()(keras.ops.ones((2, 5, 4))).shape
    (2, 6, 4)
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, input_shape):
        check_ranks(inputs=input_shape)
        self.embedding = self.add_weight(
            name="embedding",
            shape=(input_shape[-1],),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )

    def call(self, inputs):
        token = ops.cast(self.embedding, inputs.dtype)  # (D,)
        tokens = ops.broadcast_to(token, (ops.shape(inputs)[0], 1, inputs.shape[-1]))
        return ops.concatenate([tokens, inputs], axis=1)  # (B, S + 1, D)

    def compute_mask(self, inputs, previous_mask=None):
        if previous_mask is None:
            return None
        mask = ops.cast(previous_mask, "int32")  # tf2onnx does not pad booleans
        return ops.cast(ops.pad(mask, [[0, 0], [1, 0]], constant_values=1), "bool")  # (B, S + 1)

    def compute_output_shape(self, input_shape):
        batch_size, length, d_model = input_shape
        return batch_size, None if length is None else length + 1, d_model

    def get_config(self):
        return super().get_config()  # Keras' own guess fails for dtype policies

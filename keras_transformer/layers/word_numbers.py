"""Which word of its sentence each piece belongs to.

Shapes: B batch, S length, V vocabulary.
"""

import keras
from keras import layers, ops

from keras_transformer.special_ids import PAD_ID


@keras.saving.register_keras_serializable("keras_transformer")
class WordNumbers(layers.Layer):
    """Numbers the words of a sentence: pieces of the first give 1, of the second 2, padding 0.

    Positions count pieces. Where an answer names words, as a tree or a tag does, an embedding of
    these numbers tells the model which piece is of which:
    `TokenEmbedding(most + 1, d_model)(WordNumbers(starts)(ids))`.

    Args:
        starts: sequence of V bool: whether a piece begins a word, `Tokenizer.word_starts`.
        most: int, the highest number; words behind it have it, too. Defaults to 255.

    Call arguments:
        inputs: ids (B, S), int.

    Returns:
        (B, S), int32. No Keras mask: 0 is padding, and nothing else is.

    Raises:
        ValueError: `starts` is empty, or `most` is less than 1.

    Example:

    >>> starts = [False, False, False, False, True, True, False]  # piece 6 goes on with a word
    >>> WordNumbers(starts)(keras.ops.array([[4, 6, 5, 0]]))
    array([[1, 1, 2, 0]], dtype=int32)
    """

    def __init__(self, starts, most=255, **kwargs):
        super().__init__(**kwargs)
        self.starts, self.most = [bool(start) for start in starts], most
        if not self.starts:
            raise ValueError("starts is empty. Pass `tokenizer.word_starts`.")
        if most < 1:
            raise ValueError(f"most must be at least 1, but {most} was passed.")

    def call(self, inputs):
        starts = ops.take(ops.convert_to_tensor(self.starts, "int32"), inputs, axis=0)
        # What stands before the first beginning of a word belongs to it.
        numbers = ops.clip(ops.cumsum(starts, axis=1), 1, self.most)
        return ops.where(ops.equal(inputs, PAD_ID), 0, ops.cast(numbers, "int32"))

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, "int32")

    def get_config(self):
        return {**super().get_config(), "starts": self.starts, "most": self.most}

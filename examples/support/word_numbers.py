"""A layer that numbers the words of a sentence of pieces.

Shapes: B batch, S pieces of a sentence, V vocabulary.
"""

import keras
from keras import ops

from keras_transformer.special_ids import PAD_ID


@keras.saving.register_keras_serializable("support")
class WordNumbers(keras.Layer):
    """Numbers the words of a sentence: 1 for pieces of the first, 2 for the second, 0 for padding.

    Positions count pieces. If the labels name words, as in parsing or tagging, an embedding of
    these numbers tells the model which pieces form a word:
    `TokenEmbedding(most + 1, d_model)(WordNumbers(starts)(ids))`.

    Args:
        starts: sequence of V booleans, whether a piece begins a word: `Tokenizer.word_starts`.
        most: int, the largest number. All later words get it, too. Defaults to 255.

    Call arguments:
        inputs: integer ids (B, S).

    Returns:
        (B, S) int32, without a Keras mask. Only padding is 0.

    Raises:
        ValueError: `starts` is empty, or `most` is less than 1.

    Example:

    >>> starts = [False, False, False, False, True, True, False]  # piece 6 continues a word
    >>> keras.ops.convert_to_numpy(WordNumbers(starts)(keras.ops.array([[4, 6, 5, 0]])))
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
        # Pieces before the first word start belong to the first word.
        numbers = ops.clip(ops.cumsum(starts, axis=1), 1, self.most)
        return ops.where(ops.equal(inputs, PAD_ID), 0, ops.cast(numbers, "int32"))

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, "int32")

    def get_config(self):
        return {**super().get_config(), "starts": self.starts, "most": self.most}

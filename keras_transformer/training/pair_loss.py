"""What two towers learn by: each text's partner is to be found among all of the batch.

Shapes: B pairs of a batch.
"""

import keras
from keras import ops

from keras_transformer.training.losses import SequenceCrossentropy

# The score of a second text that is no text. The softmax gives it exactly 0.
NO_TEXT = -1e9


@keras.saving.register_keras_serializable("keras_transformer")
class PairCrossentropy(keras.losses.Loss):
    """In-batch softmax in both directions, for pairs of texts (or of anything).

    For a model that scores every first text of a batch against every second one, as two towers do.
    Pair i is on the diagonal; the other B - 1 are the wrong answers to tell it from. The loss is
    the mean of two cross-entropies: of the second texts given the first (rows), and of the first
    texts given the second (columns), as in CLIP (Radford et al., arXiv 2103.00020, figure 3).

    Pairs with the label -1 are padding: they count in no sum, and nobody has to tell them from a
    text. Other labels are not looked at.

    Under `tf.distribute` a replica has its own part of the batch, so a text is told from those of
    its replica only, and B is the size of that part. The divisor is the number of pairs on all
    replicas. So two replicas with batches of B learn as one with two batches of B, not as one with
    a batch of 2 B: with fewer wrong answers.

    Args:
        name: defaults to "pair_crossentropy".

    Call arguments:
        y_true: integers (B,), as `pair_batches` gives them without labels; -1 marks padding.
        y_pred: float tensor (B, B), scores before the softmax: row i has those of first text i.
        sample_weight: float tensor (B,), or `None`.

    Returns:
        Float32 scalar. A batch of padding alone gives 0, and zero gradients.

    Raises:
        ValueError: `y_pred` is not (B, B).

    Example:

    >>> loss = PairCrossentropy()
    >>> round(float(loss([0, 1], [[9.0, 0.0], [0.0, 9.0]])), 4)
    0.0001
    """

    def __init__(self, name="pair_crossentropy"):
        super().__init__(name=name, dtype="float32")
        self._crossentropy = SequenceCrossentropy(pad_id=-1)

    def __call__(self, y_true, y_pred, sample_weight=None):
        scores = ops.cast(y_pred, "float32")
        if len(scores.shape) != 2 or None not in scores.shape and len(set(scores.shape)) > 1:
            raise ValueError(
                "PairCrossentropy needs the scores of each first text against each second one, "
                f"shape (B, B), but the shape is {tuple(scores.shape)}."
            )
        real = ops.reshape(ops.cast(y_true, "int32"), (-1,)) >= 0  # (B,)
        partner = ops.where(real, ops.arange(ops.shape(scores)[0], dtype="int32"), -1)
        directions = (
            ops.where(real, across, NO_TEXT) for across in (scores, ops.transpose(scores))
        )
        return sum(self._crossentropy(partner, each, sample_weight) for each in directions) / 2

    def batch_weight(self, y_true, sample_weight=None):
        """The divisor of this batch's mean: its number (or weight) of pairs, float32."""
        return self._crossentropy.batch_weight(y_true, sample_weight)

    def get_config(self):
        return {"name": self.name}

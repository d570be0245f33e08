"""Sequences of vectors, such as sound, and what they mean, as a `tf.data.Dataset` of batches.

Shapes: B batch, S frames of the longest sequence, F features a frame, T target length.
"""

from dataclasses import dataclass

import numpy as np

from keras_transformer.data.batches import Batching, Ragged
from keras_transformer.data.checks import checked_strings
from keras_transformer.data.dataset import choose, make_dataset
from keras_transformer.data.encoding import encode_rows, lengths_of
from keras_transformer.data.labels import check_counts_agree, label_ids, pad_labels
from keras_transformer.data.translation import shifted
from keras_transformer.padding import pad_vectors


def feature_batches(
    features,
    targets,
    tokenizer=None,
    tokens_per_batch=8192,
    *,
    name="features",
    label_names=None,
    max_length=None,
    **batching,
):
    """Makes a `tf.data.Dataset` of padded batches from sequences of vectors, for `model.fit`.

    With a tokenizer the targets are texts, and each element is
    `({NAME: (B, S, F), "target_ids": (B, T)}, labels (B, T))`, target ids and labels as
    `translation_batches` makes them. Without one they are classes, and each element is
    `(features (B, S, F), labels (B,))`, labels as `classification_batches` makes them.

    Features are float32 and padded with frames of 0. Let the model leave those out, by
    `keras.layers.Masking()` or by the mask of frames behind strided convolutions. A frame of the
    data itself should not be all 0.

    Sequences of one size, such as pictures, need no function: `tf.data.Dataset.from_tensor_slices`
    and `batch` do.

    Args:
        features: sequence of N float arrays (S, F), of different length S.
        targets: sequence of N strings (with a tokenizer), or of N labels, names (str) or class
            numbers (int).
        tokenizer: `Tokenizer`, or None.
        tokens_per_batch: int, limit of `B * S` and of `B * T`.
        name: str, name of the model's input.
        label_names: see `classification_batches`.
        max_length: int or None. Sequences with more frames or tokens are left out.
        **batching: see `classification_batches`.

    Returns:
        `tf.data.Dataset` with the attribute `batches`, a `Batches`.

    Raises:
        TypeError: a target is no string, or labels are of several kinds.
        ValueError: numbers of sequences and targets differ, arrays do not have two axes and one
            F, have numbers that are not finite, nothing is left, or an argument does not fit.

    Example:

    >>> tokenizer = Tokenizer.train(["one two"], 300, hard_vocab_limit=False)
    >>> frames = [np.ones((7, 3)), np.ones((4, 3))]
    >>> train = feature_batches(frames, ["one", "two"], tokenizer)
    >>> (inputs, labels), = train
    >>> inputs["features"].shape
    TensorShape([2, 7, 3])
    """
    batching = Batching(tokens_per_batch, max_length, **batching)
    features = [np.asarray(array, np.float32) for array in features]
    check_counts_agree(features=features, targets=targets)
    _check_features(features)
    lengths, names = lengths_of(features), None
    empty = lengths == 0
    if tokenizer is None:
        classes, names = label_ids(targets, label_names)
        keys = classes.tolist()
    else:
        keys = checked_strings(targets, "targets")
        rows = encode_rows(tokenizer, keys)
        empty |= [not text.strip() for text in keys]
        lengths = np.maximum(lengths, lengths_of(rows))
    hashes = [hash(array.tobytes()) for array in features]
    keep, counts = choose(
        "sequence", lengths, batching.longest, empty=empty, keys=[*zip(hashes, keys, strict=True)]
    )
    frames = Ragged([features[i] for i in keep])
    counts["tokens"] = {"source": int(frames.lengths.sum())}
    if tokenizer is None:
        examples = LabelledFeatures(frames, classes[keep])
    else:
        target = Ragged([rows[i] for i in keep])
        counts["tokens"]["target"] = int(target.lengths.sum())
        examples = SpokenFeatures(frames, target, name)
    return make_dataset(examples, batching, counts, labels=names)


def _check_features(features):
    for number, array in enumerate(features):
        if array.ndim != 2 or array.shape[1] != features[0].shape[1]:
            raise ValueError(
                f"features must be arrays (S, F) with one F; number {number} has the shape "
                f"{array.shape}, the first one {features[0].shape}."
            )
        if not np.isfinite(array).all():
            raise ValueError(f"features number {number} has numbers that are not finite.")


@dataclass
class LabelledFeatures:
    """Sequences of vectors, and a class each."""

    frames: Ragged
    labels: np.ndarray  # (N,)

    @property
    def lengths(self):
        return self.frames.lengths

    def batch(self, rows, size, length):
        frames = pad_vectors(self.frames.take(rows), size, length)
        return frames, pad_labels(self.labels[rows], size)


@dataclass
class SpokenFeatures:
    """Sequences of vectors, and rows of ids with their end token."""

    frames: Ragged
    target: Ragged
    name: str

    @property
    def lengths(self):
        return np.maximum(self.frames.lengths, self.target.lengths)

    def batch(self, rows, size, length):
        # Texts are much shorter than sound: a shape that never changes need not be as long.
        longest = None if length is None else int(self.target.lengths.max())
        inputs, labels = shifted(self.target.take(rows), size, longest)  # (B, T)
        frames = pad_vectors(self.frames.take(rows), size, length)  # (B, S, F)
        return {self.name: frames, "target_ids": inputs}, labels

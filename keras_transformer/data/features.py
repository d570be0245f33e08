"""Batches of sequences of vectors, such as sound, with texts or classes.

Shapes: B batch, S frames of the longest sequence, F features per frame, T target length.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.data.batches import Dataset, make_dataset
from keras_transformer.data.examples import (
    Examples,
    Rows,
    are_blank,
    check_counts_agree,
    label_ids,
    pad_labels,
    refuse_without,
    text_rows,
)
from keras_transformer.data.plan import BatchOptions
from keras_transformer.data.translation import shift_targets
from keras_transformer.padding import pad_vectors
from keras_transformer.text.corpora import checked_strings
from keras_transformer.text.json_tokenizer import AnyTokenizer
from keras_transformer.text.vocabularies import check_tokenizer
from keras_transformer.types import Array, Ids


def feature_batches(
    features: Sequence[Array],
    targets: Sequence[str] | Sequence[int],
    tokenizer: AnyTokenizer | None = None,
    tokens_per_batch: int = 8192,
    *,
    name: str = "features",
    label_names: Sequence[str] | None = None,
    max_length: int | None = None,
    **options: Any,
) -> Dataset:
    """Makes padded batches from sequences of vectors, for `model.fit`.

    With a tokenizer the targets are texts, and each batch is
    `({NAME: (B, S, F), "target_ids": (B, T)}, labels (B, T))`, with the target ids and labels of
    `translation_batches`. Without a tokenizer the targets are classes, and each batch is
    `(features (B, S, F), labels (B,))`. Rows that fill up such a batch have the label -1.

    Features are float32 and padded with frames of 0. Let the model mask these frames, with
    `keras.layers.Masking()` or with `MaskedConv1D`. A frame of the data should not be all 0.

    For sequences of equal size, such as pictures, use `tf.data.Dataset.from_tensor_slices` and
    `batch` instead.

    Args:
        features: sequence of N float arrays (S, F), of different length S.
        targets: sequence of N strings (with a tokenizer), or of N labels, names (str) or class
            numbers (int).
        tokenizer: `Tokenizer`, or `None`.
        tokens_per_batch: int, limit of `B * S` and of `B * T`.
        name: str, name of the model's input beside "target_ids". Defaults to "features".
        label_names: sequence of str, the names in the order of their ids. Defaults to `None`: the
            names that occur, sorted.
        max_length: int or `None`. Sequences with more frames or tokens are left out.
        **options: other fields of `BatchOptions`.

    Returns:
        On TensorFlow a `tf.data.Dataset` with the attribute `batches`, a `Batches`; on other
        backends a `Batches`.

    Raises:
        TypeError: a target is not a string, or labels are of several kinds.
        ValueError: numbers of sequences and targets differ, an array does not have two axes, arrays
            differ in F, a number is not finite, nothing is left, or an argument is out of its
            range.

    Example:

    >>> tokenizer = Tokenizer.train(["one two"], 300, hard_vocab_limit=False)
    >>> frames = [np.ones((7, 3)), np.ones((4, 3))]
    >>> train = feature_batches(frames, ["one", "two"], tokenizer)
    >>> (inputs, labels), = train
    >>> inputs["features"].shape
    TensorShape([2, 7, 3])
    """
    if tokenizer is not None:
        check_tokenizer(tokenizer)
    batch_options = BatchOptions(tokens_per_batch, max_length, **options)
    if tokenizer is not None and name == "target_ids":
        raise ValueError(
            "name must differ from 'target_ids', the input of the texts: pass the name of the "
            "input that reads the features."
        )
    features = [np.asarray(array, np.float32) for array in features]
    check_counts_agree(features=features, targets=targets)
    _check_features(features)
    frames, classes, names = Rows.of(features), None, None
    columns, empty = {"source": frames}, frames.lengths == 0
    if tokenizer is None:
        refuse_without("tokenizer", name=None if name == "features" else name)
        classes, names = label_ids(targets, label_names)
        collate = _collate_classes
    else:
        refuse_without("classes as targets", label_names=label_names)
        texts = checked_strings(targets, "targets")
        columns["target"] = text_rows(tokenizer, texts, None)
        empty |= are_blank(texts)
        collate = functools.partial(_collate_texts, name)
    examples = Examples("sequence", columns, empty, collate, classes)
    return make_dataset(examples, batch_options, {"target": tokenizer} if tokenizer else {}, names)


def _check_features(features: Sequence[Array]) -> None:
    for number, array in enumerate(features):
        if array.ndim != 2 or array.shape[1] != features[0].shape[1]:
            raise ValueError(
                f"features must be arrays (S, F) with one F; number {number} has the shape "
                f"{array.shape}, the first one {features[0].shape}."
            )
        if not np.isfinite(array).all():
            raise ValueError(f"features number {number} has numbers that are not finite.")


def _collate_classes(
    examples: Examples, indices: Ids, size: int, length: int | None
) -> tuple[Array, Ids]:
    (frames,) = examples.take(indices)
    return pad_vectors(frames, size, length), pad_labels(examples.labels[indices], size)


def _collate_texts(
    name: str, examples: Examples, indices: Ids, size: int, length: int | None
) -> tuple[dict[str, Array], Ids]:
    frames, targets = examples.take(indices)
    # Most texts are much shorter than sound, so their static shapes need not be as long.
    longest = None
    if length is not None:
        longest = min(length, int(examples.columns["target"].lengths.max()))
    target_ids, labels = shift_targets(targets, size, longest)
    return {name: pad_vectors(frames, size, length), "target_ids": target_ids}, labels

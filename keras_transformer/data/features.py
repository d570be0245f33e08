"""Batches of sequences of vectors, such as sound, with texts or classes.

Shapes: B batch, S frames of the longest sequence, F features per frame, T target length.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from keras_transformer.data.batches import Dataset, make_dataset
from keras_transformer.data.examples import (
    Examples,
    Padded,
    Rows,
    are_blank,
    begun,
    check_counts_agree,
    label_ids,
    refuse_without,
    row_labels,
    text_rows,
)
from keras_transformer.data.plan import BatchOptions
from keras_transformer.text.corpora import checked_strings
from keras_transformer.text.vocabularies import check_tokenizer
from keras_transformer.types import AnyTokenizer, Array


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
    inputs, labels = Padded("source"), row_labels
    if tokenizer is None:
        refuse_without("tokenizer", name=None if name == "features" else name)
        classes, names = label_ids(targets, label_names)
    else:
        refuse_without("classes as targets", label_names=label_names)
        texts = checked_strings(targets, "targets")
        columns["target"] = text_rows(tokenizer, texts, None)
        empty |= are_blank(texts)
        # Most texts are much shorter than sound, so their static shapes need not be as long.
        labels = Padded("target", may_be_shorter=True)
        inputs = {name: inputs, "target_ids": replace(labels, part=begun)}
    examples = Examples("sequence", columns, empty, inputs, labels, classes)
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

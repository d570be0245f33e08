"""Batches of sequences of vectors, such as sound, and of images, with texts or classes.

Shapes: B batch, S frames of the longest sequence, F features per frame, T target length, H height
and C channels of images, W width of the widest image.
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
    batch_options = BatchOptions(tokens_per_batch, max_length, **options)
    features = [np.asarray(array, np.float32) for array in features]
    check_counts_agree(features=features, targets=targets)
    _check_features(features)
    field, given = Padded("source"), None if name == "features" else name
    examples = "sequence", Rows.of(features), field, targets
    return _with_targets(*examples, tokenizer, batch_options, name, given, label_names)


def image_batches(
    images: Sequence[Array],
    targets: Sequence[str] | Sequence[int],
    tokenizer: AnyTokenizer | None = None,
    tokens_per_batch: int = 8192,
    *,
    name: str = "images",
    label_names: Sequence[str] | None = None,
    max_length: int | None = None,
    fill: float = -1.0,
    **options: Any,
) -> Dataset:
    """Makes padded batches from images of one height and different widths, for `model.fit`.

    The images are lines of text, handwriting or music. With a tokenizer the targets are texts, and
    each batch is `({NAME: (B, H, W, C), "target_ids": (B, T)}, labels (B, T))`, with the target ids
    and labels of `translation_batches`. Without a tokenizer the targets are classes, and each batch
    is `(images (B, H, W, C), labels (B,))`. Rows that fill up such a batch have the label -1.

    Pixels are float32 and not scaled. On the right, pixels of the value `fill` pad an image to the
    width of the batch. Mask them with `keras.layers.Masking(mask_value=fill)` in front of a
    `PatchEmbedding`: then padding changes no result.

    Args:
        images: sequence of N arrays (H, W, C) or (H, W), of different width W.
        targets: sequence of N strings (with a tokenizer), or of N labels, names (str) or class
            numbers (int).
        tokenizer: `Tokenizer`, or `None`.
        tokens_per_batch: int, limit of `B * W` and of `B * T`; a column of pixels is a token.
        name: str, name of the model's input beside "target_ids". Defaults to "images".
        label_names: sequence of str, the names in the order of their ids. Defaults to `None`: the
            names that occur, sorted.
        max_length: int or `None`. Images that are wider, and longer texts, are left out.
        fill: float, the value of padding, which no pixel has. Defaults to -1.
        **options: other fields of `BatchOptions`.

    Returns:
        On TensorFlow a `tf.data.Dataset` with the attribute `batches`, a `Batches`; on other
        backends a `Batches`.

    Raises:
        TypeError: a target is not a string, or labels are of several kinds.
        ValueError: numbers of images and targets differ, an array does not have two or three axes,
            arrays differ in H or C, a number is not finite, a pixel has the value `fill`, nothing
            is left, or an argument is out of its range.

    Example:

    >>> images = [np.ones((28, 40)), np.zeros((28, 64))]
    >>> train = image_batches(images, ["a", "b"])
    >>> (pixels, labels), = train
    >>> pixels.shape
    TensorShape([2, 28, 64, 1])
    """
    batch_options = BatchOptions(tokens_per_batch, max_length, **options)
    images = [np.asarray(array, np.float32) for array in images]
    check_counts_agree(images=images, targets=targets)
    images = [array[..., None] if array.ndim == 2 else array for array in images]
    _check_images(images, fill)
    rows = Rows.of([array.swapaxes(0, 1) for array in images])  # columns of pixels
    field, given = Upright("source", fill=fill), None if name == "images" else name
    examples = "image", rows, field, targets
    return _with_targets(*examples, tokenizer, batch_options, name, given, label_names)


class Upright(Padded):
    """A field with images (B, H, W, C) from rows of columns (W, H, C)."""

    def __call__(self, *batch: Any) -> Array:
        return super().__call__(*batch).swapaxes(1, 2)


def _with_targets(
    unit: str,
    rows: Rows,
    field: Padded,
    targets: Sequence[Any],
    tokenizer: AnyTokenizer | None,
    batch_options: BatchOptions,
    name: str,
    given_name: str | None,
    label_names: Sequence[str] | None,
) -> Dataset:
    """Makes batches of a field, with texts or classes as targets."""
    classes, names, inputs, labels = None, None, field, row_labels
    columns, empty = {"source": rows}, rows.lengths == 0
    if tokenizer is None:
        refuse_without("tokenizer", name=given_name)
        classes, names = label_ids(targets, label_names)
    else:
        check_tokenizer(tokenizer)
        if name == "target_ids":
            raise ValueError(
                "name must differ from 'target_ids', the input of the texts: pass the name of the "
                f"input that reads the {unit}s."
            )
        refuse_without("classes as targets", label_names=label_names)
        texts = checked_strings(targets, "targets")
        columns["target"] = text_rows(tokenizer, texts, None)
        empty |= are_blank(texts)
        # Most texts are much shorter than sound, so their static shapes need not be as long.
        labels = Padded("target", may_be_shorter=True)
        inputs = {name: field, "target_ids": replace(labels, part=begun)}
    examples = Examples(unit, columns, empty, inputs, labels, classes)
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


def _check_images(images: Sequence[Array], fill: float) -> None:
    for number, array in enumerate(images):
        first = images[0].shape
        if array.ndim != 3 or (array.shape[0], array.shape[2]) != (first[0], first[2]):
            raise ValueError(
                "images must be arrays (H, W, C) or (H, W) with one H and one C; number "
                f"{number} has the shape {array.shape}, the first one {first}. Resize them to one "
                "height."
            )
        if not np.isfinite(array).all():
            raise ValueError(f"images number {number} has numbers that are not finite.")
        if (array == np.float32(fill)).all(axis=-1).any():
            raise ValueError(
                f"images number {number} has pixels of the value fill={fill}, which marks padding. "
                "Pass a number that no pixel has, and the same mask_value to keras.layers.Masking."
            )

"""Pads rows of different length to one array. NumPy only, for training, export and serving."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.special_ids import PAD_ID
from keras_transformer.types import Array, Ids


def pad_rows(
    rows: Sequence[Sequence[int] | Ids],
    batch_size: int | None = None,
    length: int | None = None,
    fill: int = PAD_ID,
) -> Ids:
    """Puts rows of ids into one array, padded on the right.

    Args:
        rows: list of lists or arrays of ids.
        batch_size: int, B, at least the number of rows; missing rows consist of padding. Defaults
            to the number of rows.
        length: int, S, at least the length of the longest row. Defaults to that length.
        fill: int, the value of padding. Defaults to the padding id, 0.

    Returns:
        int32 (B, S).

    Raises:
        ValueError: there are more rows than `batch_size`, or a row is longer than `length`.

    Example:

    >>> pad_rows([[5, 7, 3], [9, 3]])
    array([[5, 7, 3],
           [9, 3, 0]], dtype=int32)
    """
    ids = np.full(_padded_shape(rows, batch_size, length), fill, np.int32)
    for padded, row in zip(ids, rows, strict=False):
        padded[: len(row)] = row
    return ids


def pad_vectors(
    rows: Sequence[Array], batch_size: int | None = None, length: int | None = None
) -> Array:
    """Puts rows of vectors, float arrays (S, ...), into one array, padded with 0 on the right.

    Args:
        rows: list of at least one array; all agree in all axes but the first.
        batch_size: int, B. Defaults to the number of rows.
        length: int, S. Defaults to the length of the longest row.

    Returns:
        float32 (B, S, ...).

    Raises:
        ValueError: there are more rows than `batch_size`, or a row is longer than `length`.

    Example:

    >>> pad_vectors([np.ones((1, 2)), np.ones((3, 2))]).shape
    (2, 3, 2)
    """
    inner = rows[0].shape[1:]
    vectors = np.zeros((*_padded_shape(rows, batch_size, length), *inner), np.float32)
    for padded, row in zip(vectors, rows, strict=False):
        padded[: len(row)] = row
    return vectors


def _padded_shape(
    rows: Sequence[Any], batch_size: int | None, length: int | None
) -> tuple[int, int]:
    longest = max(map(len, rows), default=0)
    batch_size = len(rows) if batch_size is None else batch_size
    length = longest if length is None else length
    if len(rows) > batch_size or longest > length:
        raise ValueError(
            f"{len(rows)} rows of up to {longest} ids do not fit into ({batch_size}, {length}). "
            "Pass a larger batch_size or length, or leave them out."
        )
    return batch_size, length

"""Pads rows of different length to one array. NumPy only, for training, export and serving."""

from collections.abc import Sequence

import numpy as np

from keras_transformer.special_ids import PAD_ID
from keras_transformer.types import Array


def pad_rows(
    rows: Sequence[Sequence[int] | Array],
    batch_size: int | None = None,
    length: int | None = None,
    fill: int = PAD_ID,
) -> Array:
    """Puts rows of ids, or of vectors, into one array, padded on the right.

    Args:
        rows: list of lists or arrays of ids; or list of float arrays (S, ...), which agree in all
            axes but the first.
        batch_size: int, B, at least the number of rows; missing rows consist of padding. Defaults
            to the number of rows.
        length: int, S, at least the length of the longest row. Defaults to that length.
        fill: int, the value of padding. Defaults to the padding id, 0.

    Returns:
        int32 (B, S), or float32 (B, S, ...) for vectors.

    Raises:
        ValueError: there are more rows than `batch_size`, or a row is longer than `length`.

    Example:

    >>> pad_rows([[5, 7, 3], [9, 3]])
    array([[5, 7, 3],
           [9, 3, 0]], dtype=int32)
    """
    longest = max(map(len, rows), default=0)
    batch_size = len(rows) if batch_size is None else batch_size
    length = longest if length is None else length
    if len(rows) > batch_size or longest > length:
        raise ValueError(
            f"{len(rows)} rows of up to {longest} ids do not fit into ({batch_size}, {length}). "
            "Pass a larger batch_size or length, or leave them out."
        )
    vector = getattr(rows[0], "shape", (0,))[1:] if len(rows) else ()
    dtype = np.float32 if vector else np.int32
    array = np.full((batch_size, length, *vector), fill, dtype)
    for padded, row in zip(array, rows, strict=False):
        padded[: len(row)] = row
    return array


def pad_words(lines: Sequence[Sequence[Sequence[int]]]) -> Array:
    """Puts the ids of the words of each line into one array, padded with 0.

    Args:
        lines: B lists of words, each word a list of ids.

    Returns:
        int32 (B, N, L): N words of the line with the most, L ids of the longest word.

    >>> pad_words([[[5, 7], [9]], []]).shape
    (2, 2, 2)
    """
    count = max(map(len, lines))
    flat = pad_rows([word for line in lines for word in (*line, *[[]] * (count - len(line)))])
    return flat.reshape(len(lines), count, flat.shape[1])


def check_rows(value: object, name: str) -> None:
    """Raises `ValueError` if a list has lists of different lengths.

    >>> check_rows([[5, 7], [9]], "target_prefix")
    Traceback (most recent call last):
    ValueError: target_prefix has rows of 1 to 2 ids. Pad the shorter ones with 0 on the right.
    """
    rows = value if isinstance(value, list | tuple) else ()
    lengths = {len(row) for row in rows if isinstance(row, list | tuple)}
    if len(lengths) > 1:
        raise ValueError(
            f"{name} has rows of {min(lengths)} to {max(lengths)} ids. Pad the shorter ones with 0 "
            "on the right."
        )

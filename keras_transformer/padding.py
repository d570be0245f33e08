"""Rows of ids of different length as one array. NumPy only, for training, export and serving."""

import numpy as np

from keras_transformer.special_ids import PAD_ID


def pad_rows(rows, batch_size=None, length=None):
    """Puts rows of ids into one array, padded on the right.

    Args:
        rows: list of lists or arrays of ids.
        batch_size: int, B, at least the number of rows; missing ones are all padding. Defaults to
            the number of rows.
        length: int, S, at least the length of the longest row. Defaults to that length.

    Returns:
        int32 (B, S).

    Raises:
        ValueError: there are more rows, or longer ones, than the array takes.

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
            "Pass a larger batch_size or length, or none."
        )
    ids = np.full((batch_size, length), PAD_ID, np.int32)
    for padded, row in zip(ids[: len(rows)], rows, strict=True):
        padded[: len(row)] = row
    return ids

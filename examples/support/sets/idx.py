"""Arrays in the IDX format of MNIST and its successors."""

import gzip
from math import prod
from pathlib import Path

import numpy as np

# Types by the third byte of a file. Numbers are big-endian.
TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path):
    """Reads an array from an IDX file, plain or gzip.

    Args:
        path: the file; compressed if its name ends with ".gz".

    Returns:
        Read-only array of the file's shape and type.

    Raises:
        ValueError: the file is not in the format, or is cut off.
        OSError: there is no such file, or it cannot be read.

    Example:

    >>> read_idx("train-images-idx3-ubyte.gz").shape  # doctest: +SKIP
    (60000, 28, 28)
    """
    path = Path(path)
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in TYPES:
        raise ValueError(f"{path} is not in the IDX format: it begins with {data[:4]!r}.")
    kind, axes = np.dtype(TYPES[data[2]]), data[3]
    start = 4 + 4 * axes
    shape = np.frombuffer(data[4:start], ">u4").tolist() if len(data) >= start else None
    if shape is None or len(data) - start != prod(shape) * kind.itemsize:
        raise ValueError(f"{path} is not whole: {len(data)} bytes do not fit its header.")
    return np.frombuffer(data, kind, offset=start).reshape(shape)

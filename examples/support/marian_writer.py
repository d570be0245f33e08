"""Writes small test models in Marian's binary format.

`keras_transformer.importers.marian_binary` reads them.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_transformer.importers.marian_binary import CONFIG, FLOAT32, INT8, INTGEMM8, VERSION
from keras_transformer.types import Array, StrPath

ALIGNMENT = 256  # in bytes, of a tensor's data


def write_model(path: StrPath, arrays: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Writes a model for `read_model`: matrices as 8-bit integers, vectors as float32.

    Args:
        path: str or path-like, `model.*.bin`.
        arrays: dict from name to array; vectors are (1, n).
        config: dict from key to str, number, bool or list.

    Example:

    >>> write_model("model.bin", {"Wemb": table}, {"dim-emb": 256})  # doctest: +SKIP
    """
    lines = [f"{key}: {_written(value)}\n" for key, value in sorted(config.items())]
    items = [(name, *_payload(name, np.asarray(arrays[name]))) for name in sorted(arrays)]
    text = "".join(lines).encode() + b"\0"
    items.append((CONFIG, INT8, (len(text),), text))
    headers = [(len(name) + 1, kind, len(shape), len(data)) for name, kind, shape, data in items]
    before = np.array([VERSION, len(items), *np.ravel(headers)], "<u8").tobytes()
    before += b"".join(name.encode() + b"\0" for name, *_ in items)
    before += np.concatenate([shape for _, _, shape, _ in items]).astype("<i4").tobytes()
    padding = -(len(before) + 8) % ALIGNMENT
    before += np.array([padding], "<u8").tobytes() + bytes(padding)
    pathlib.Path(path).write_bytes(before + b"".join(data for *_, data in items))


def _payload(name: str, array: Array) -> tuple[int, tuple[int, ...], bytes]:
    """Returns type, shape and bytes of a tensor."""
    if array.shape[0] == 1:
        kind, data = FLOAT32, array.astype("<f4").tobytes()
    else:
        multiplier = np.float32(127.0 / np.abs(array).max())
        integers = np.rint(array * multiplier).astype(np.int8)
        integers = integers if name.endswith("Wemb") else integers.T
        kind, data = INTGEMM8, integers.tobytes() + multiplier.astype("<f4").tobytes()
    return kind, array.shape, data + bytes(-len(data) % ALIGNMENT)


def _written(value: Any) -> Any:
    """Inverts `marian_binary._value`."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "".join(f"\n  - {one}" for one in value) or "[]"
    return '""' if value == "" else value

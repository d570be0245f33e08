"""Marian's binary files, as Bergamot and Firefox ship them.

All numbers are little-endian. The files contain no code.
"""

import math
import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from keras_transformer.types import Array, StrPath

Content = TypeVar("Content")
VERSION = 1
CONFIG = "special:model.yml"
FLOAT32, FLOAT16, INT8, INTGEMM8 = 0x404, 0x402, 0x101, 0x4101
DTYPES = {FLOAT32: "<f4", FLOAT16: "<f2", INTGEMM8: "<i1"}
# Multipliers of activations, for products of integers; float32 does not need them.
ACTIVATIONS = "_QuantMultA"


class Reader:
    """Reads the bytes of a file part by part."""

    def __init__(self, path: StrPath) -> None:
        self.data, self.position = pathlib.Path(path).read_bytes(), 0

    def take(self, dtype: npt.DTypeLike, count: int, name: str) -> Array:
        """Returns the next `count` numbers. `name` describes them in errors."""
        end = self.position + count * np.dtype(dtype).itemsize
        if end > len(self.data):
            raise ValueError(
                f"it is truncated: {name} ends at byte {end:,}, the file at {len(self.data):,}. "
                "Copy it again."
            )
        numbers = np.frombuffer(self.data, dtype, count, self.position)
        self.position = end
        return numbers


def parsed(path: StrPath, kind: str, parse: Callable[[Reader], Content]) -> Content:
    """Returns the result of `parse` for a file. Raises `ValueError` that names the file."""
    try:
        return parse(Reader(path))
    except ValueError as error:  # including invalid UTF-8
        raise ValueError(f"{path} cannot be read as {kind}: {error}") from error


def read_model(path: StrPath) -> tuple[dict[str, Array], dict[str, Any]]:
    """Reads the weights and the configuration of a model, `model.*.bin`.

    Args:
        path: str or path-like. 8-bit weights become float32, scaled as `intgemm` does.

    Returns:
        A pair: dict from name to float32 array, matrices (inputs, outputs); and the configuration,
        dict from key to str, number, bool or list.

    Raises:
        ValueError: a file of another format or version, a truncated file, or an unknown number
            type. The message names the file.

    Example:

    >>> arrays, config = read_model("model.enpt.intgemm.alphas.bin")  # doctest: +SKIP
    """
    return parsed(path, "a model", _read_model)


def _read_model(reader: Reader) -> tuple[dict[str, Array], dict[str, Any]]:
    version, count = (int(number) for number in reader.take("<u8", 2, "the header"))
    if version != VERSION:
        raise ValueError(
            f"it begins with {version}, not with the version {VERSION} of Marian's binary format. "
            "Convert a model.npz with marian-conv; decompress a compressed file."
        )
    if 32 * count > len(reader.data):
        raise ValueError(f"its header says {count:,} tensors, more than its bytes can hold.")
    headers = reader.take("<u8", 4 * count, "the list of tensors").reshape(count, 4).tolist()
    names = [
        bytes(reader.take("u1", header[0], "a name")).rstrip(b"\0").decode() for header in headers
    ]
    shapes = [
        tuple(reader.take("<i4", header[2], f"the shape of {name!r}").tolist())
        for name, header in zip(names, headers, strict=True)
    ]
    padding = int(reader.take("<u8", 1, "the padding")[0])
    reader.take("u1", padding, "the padding")
    arrays, config = {}, None
    for name, shape, (_, kind, _, size) in zip(names, shapes, headers, strict=True):
        payload = reader.take("u1", size, repr(name))
        if name == CONFIG:
            config = read_settings(bytes(payload).rstrip(b"\0").decode())
        elif not name.endswith(ACTIVATIONS):
            arrays[name] = _numbers(name, shape, kind, payload)
    if config is None:
        raise ValueError(f"it has no {CONFIG!r}, the configuration of the model.")
    return arrays, config


def _numbers(name: str, shape: tuple[int, ...], kind: int, payload: Array) -> Array:
    """Returns the float32 array of a tensor."""
    if kind not in DTYPES:
        raise ValueError(
            f"{name!r} has the number type {kind:#x}, but must be float32, float16 or intgemm8. "
            "Convert the model with marian-conv --gemm-type float32."
        )
    size = math.prod(shape) * np.dtype(DTYPES[kind]).itemsize
    needed = size + (4 if kind == INTGEMM8 else 0)  # with the scale
    if min(shape, default=0) < 1 or len(payload) < needed:
        raise ValueError(
            f"{name!r} has shape {shape}, {needed:,} bytes, but the file has {len(payload):,}."
        )
    numbers = payload[:size].view(DTYPES[kind])
    if kind != INTGEMM8:
        return numbers.astype(np.float32).reshape(shape)
    multiplier = payload[size:needed].copy().view("<f4")[0]
    if not (np.isfinite(multiplier) and multiplier > 0):
        raise ValueError(f"{name!r} has the scale {multiplier}, but must have a positive one.")
    if name.endswith("Wemb"):  # stored row by row
        return numbers.reshape(shape) / multiplier
    if name.endswith("Wt"):
        raise ValueError(
            f"{name!r} is a transposed matrix in intgemm8, which is not supported. Convert the "
            "model with marian-conv --gemm-type float32."
        )
    return numbers.reshape(shape[::-1]).T / multiplier  # stored (outputs, inputs)


def read_settings(text: str) -> dict[str, Any]:
    """Parses Marian's YAML: one `key: value` per line, lists as lines `  - value`."""
    settings: dict[str, Any] = {}
    key = None
    for line in text.splitlines():
        if line.startswith(("  - ", "- ")) and key is not None:
            if settings[key] is None:
                settings[key] = []
            if not isinstance(settings[key], list):
                raise ValueError(f"the setting {key[:100]!r} is both a value and a list.")
            settings[key].append(_value(line.partition("- ")[2]))
        elif ":" in line and not line.startswith((" ", "#")):
            key, _, value = line.partition(":")
            settings[key] = _value(value)
    return settings


def _value(text: str) -> Any:
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    if text in ("[]", '""', "''", ""):
        return {"[]": [], "": None}.get(text, "")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text.strip("\"'")

"""CTranslate2's binary file, `model.bin`: variables by name, some of them quantized.

All numbers are little-endian. The file contains no code. Its writer,
`ctranslate2/specs/model_spec.py`, documents the layout.
"""

import math
from dataclasses import dataclass

import numpy as np

from keras_transformer.importers.marian_binary import Reader, parsed
from keras_transformer.types import Array, StrPath

VERSION = 6
# The number types by their numbers in the file. NumPy reads bfloat16 as integers.
DTYPES = ("<f4", "<i1", "<i2", "<i4", "<f2", "<u2")
BFLOAT16 = 5
MOST_AXES = 4
QUANTIZED = ("int8", "int16")
SCALE = "_scale"  # after the name of a quantized weight: the name of its scale


@dataclass(frozen=True)
class Specification:
    """The content of a file.

    Attributes:
        name: kind of the model, such as "TransformerSpec".
        revision: version of this kind.
        scalars: dict from name to number, the settings.
        tensors: dict from name to float32 array.
    """

    name: str
    revision: int
    scalars: dict[str, float]
    tensors: dict[str, Array]


def read_model(path: StrPath) -> Specification:
    """Reads the settings and weights of a model.

    Args:
        path: str or path-like. Weights in int8, int16, float16 and bfloat16 become float32.

    Raises:
        OSError: the file is missing.
        ValueError: a file of another format or version, a truncated file, or weights that are
            quantized in another way. The message names the file.

    Example:

    >>> read_model("model.bin").name  # doctest: +SKIP
    'WhisperSpec'
    """
    return parsed(path, "a model", _read_model)


def _read_model(reader: Reader) -> Specification:
    version = _number(reader, "<u4", "the version")
    if version != VERSION:
        raise ValueError(
            f"it begins with {version}, not with the version {VERSION} of CTranslate2's format. "
            "Convert the original model again with a CTranslate2 of version 3 or later."
        )
    kind = _string(reader, "the name of the specification")
    revision = _number(reader, "<u4", "the revision")
    arrays: dict[str, Array] = {}
    for _ in range(_number(reader, "<u4", "the number of variables")):
        name = _string(reader, "the name of a variable")
        if name in arrays:
            raise ValueError(f"it holds {name!r} twice. Copy it again.")
        arrays[name] = _array(reader, name)
    tensors = {name: _dequantized(name, arrays) for name in arrays if not name.endswith(SCALE)}
    for _ in range(_number(reader, "<u4", "the number of aliases")):
        alias, name = _string(reader, "an alias"), _string(reader, "the name of a variable")
        if alias in tensors or name not in tensors:
            raise ValueError(f"its alias {alias!r} of {name!r} stands for no variable.")
        tensors[alias] = tensors[name]
    if reader.position < len(reader.data):
        raise ValueError(f"it goes on after the last alias, at byte {reader.position:,}.")
    scalars = {name: array.item() for name, array in tensors.items() if not array.ndim}
    return Specification(
        kind, revision, scalars, {n: array for n, array in tensors.items() if array.ndim}
    )


def _number(reader: Reader, dtype: str, name: str) -> int:
    return int(reader.take(dtype, 1, name)[0])


def _string(reader: Reader, name: str) -> str:
    """Reads a string, which ends with a zero byte."""
    return bytes(reader.take("u1", _number(reader, "<u2", name), name)).rstrip(b"\0").decode()


def _array(reader: Reader, name: str) -> Array:
    """Reads the next array as it is stored; bfloat16 as float32."""
    rank = _number(reader, "u1", f"the shape of {name!r}")
    if rank > MOST_AXES:
        raise ValueError(f"{name!r} has {rank} axes, but at most {MOST_AXES} are possible.")
    shape = tuple(reader.take("<u4", rank, f"the shape of {name!r}").tolist())
    kind = _number(reader, "u1", f"the type of {name!r}")
    size = _number(reader, "<u4", f"the size of {name!r}")
    if kind >= len(DTYPES):
        raise ValueError(f"{name!r} has the number type {kind}, not one of 0 to 5.")
    count = math.prod(shape)
    if count < 1 or count * np.dtype(DTYPES[kind]).itemsize != size:
        raise ValueError(f"{name!r} has shape {shape} of {DTYPES[kind]}, but {size:,} bytes.")
    array = reader.take(DTYPES[kind], count, repr(name)).reshape(shape)
    if kind == BFLOAT16:  # the upper half of a float32
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def _dequantized(name: str, arrays: dict[str, Array]) -> Array:
    """Returns the float32 array of a weight, or a setting as it is.

    A quantized weight has one scale for all of its numbers, or one for each row.
    """
    array, scale = arrays[name], arrays.get(name + SCALE)
    if array.ndim and array.dtype.name not in (*QUANTIZED, "float16", "float32"):
        raise ValueError(f"{name!r} holds {array.dtype.name}, which is no number type of weights.")
    if not array.ndim:
        return array
    if (scale is None) == (array.dtype.name in QUANTIZED):
        raise ValueError(
            f"{name!r} holds {array.dtype.name} {'without' if scale is None else 'with'} a scale."
        )
    numbers = array.astype(np.float32)
    if scale is None:
        return numbers
    if scale.shape not in ((), array.shape[:1]) or not (np.isfinite(scale) & (scale > 0)).all():
        raise ValueError(f"the scale of {name!r} must be positive, one or {len(array)} numbers.")
    with np.errstate(over="ignore"):
        numbers /= scale.astype(np.float32).reshape(-1, *[1] * (array.ndim - 1))
    if not np.isfinite(numbers).all():
        raise ValueError(f"the scale of {name!r} is too small: {scale.min()}.")
    return numbers

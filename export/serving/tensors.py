"""Tensors of the Open Inference Protocol, version 2: what every model reads and writes there.

A model has one input and three outputs, whatever its task, all of type BYTES and of one shape, an
element a line:

| tensor | element |
| --- | --- |
| `text`, in | a line, as the command line reads it: UTF-8; JSON for models that read arrays |
| `text`, out | what the command line writes for it |
| `result`, out | all that the result has, as JSON: hypotheses, scores, labels, spans, vectors |
| `error`, out | why there is no result, or nothing |

In binary an element of type BYTES is its length, four bytes, the lowest first, and its bytes.
"""

import math
import struct

from keras_transformer.export.runtime.lines import Format, written
from keras_transformer.export.serving.limits import Invalid, shown

INPUT, OUTPUTS = "text", ("text", "result", "error")
MOST = 2**63  # integers are below it, as in the protocol over gRPC
_LENGTH = struct.Struct("<I")
_TEXT, _JSON = Format(), Format(json=True)


def described(model):
    """The metadata of a model, with the keys of the protocol."""
    entry = {"datatype": "BYTES", "shape": [-1]}
    return {
        "name": model.name,
        "versions": [model.description.version],
        "platform": "keras_transformer_onnx",
        "inputs": [{"name": INPUT, **entry}],
        "outputs": [{"name": name, **entry} for name in OUTPUTS],
    }


def check_input(names, datatype, shape):
    """Raises `Invalid` unless there is one input, as `described` says; returns its size."""
    if names != [INPUT]:
        raise Invalid(f"One input is read, {INPUT!r}; there are {len(names)}: {shown(names)}.")
    if datatype != "BYTES":
        raise Invalid(f"The input {INPUT!r} has the type BYTES, not {shown(datatype)}.")
    fits = isinstance(shape, list) and 1 <= len(shape) <= 8
    if not fits or not all(type(size) is int and 0 <= size < MOST for size in shape):
        raise Invalid(f"The shape is one to eight sizes, such as [2, 1], not {shown(shape)}.")
    return math.prod(shape)


def check_size(items, size):
    """Raises `Invalid` unless there are as many elements as the shape says; returns them."""
    if len(items) != size:
        raise Invalid(f"The shape of {INPUT!r} asks for {size} elements; there are {len(items)}.")
    return items


def asked_outputs(names):
    """The names of the outputs to send; all where none is named."""
    for name in names[: 1 + len(OUTPUTS)]:
        if name not in OUTPUTS:
            raise Invalid(f"There is no output {shown(name)}, but: {', '.join(OUTPUTS)}.")
    if len(names) > len(set(names[: 1 + len(OUTPUTS)])):
        raise Invalid("The request names an output twice.")
    return list(names) or list(OUTPUTS)


def unpacked(data, most):
    """The elements in binary data, a list of bytes; no more than one above `most`."""
    items, place = [], 0
    while place < len(data) and len(items) <= most:
        start = place + _LENGTH.size
        if start > len(data):
            raise Invalid("The binary data ends within the length of an element.")
        place = start + _LENGTH.unpack_from(data, start - _LENGTH.size)[0]
        if place > len(data):
            raise Invalid("The binary data ends within an element.")
        items.append(data[start:place])
    return items


def packed(items):
    """Elements as binary data."""
    return b"".join(_LENGTH.pack(len(item)) + item for item in items)


def elements(name, results):
    """The elements of an output, a list of bytes."""
    if name == "error":
        return [(result.error or "").encode() for result in results]
    form = _TEXT if name == "text" else _JSON
    return [written(0, result, form).removesuffix(b"\n") for result in results]


def timeout(value):
    """Seconds, of the parameter `timeout`, in microseconds; None where it is missing."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST:
        raise Invalid(f"The parameter timeout is a number of microseconds, not {shown(value)}.")
    return value / 1e6 if value else None

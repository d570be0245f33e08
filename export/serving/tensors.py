"""Tensors of the Open Inference Protocol, version 2, which do not depend on the model.

For every task, a model has one input and three outputs, all of type BYTES and of one shape, one
element per line:

| tensor | element |
| --- | --- |
| `text`, in | a line, as the command line reads it: UTF-8; JSON for models that read arrays |
| `text`, out | the line that the command line writes for it |
| `result`, out | the whole result, as JSON: hypotheses, scores, labels, spans, vectors |
| `error`, out | why there is no result, or nothing |

In binary, an element of type BYTES is its length, four bytes, the lowest first, and its bytes.
"""

import importlib.metadata
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from keras_transformer.export.artefact.messages import shorten
from keras_transformer.export.runtime.lines import Format, format_result
from keras_transformer.export.serving.models import Model, Models
from keras_transformer.export.serving.refusals import Invalid
from keras_transformer.export.serving.request_options import check_names

INPUT, OUTPUTS = "text", ("text", "result", "error")
# The fields of the protocol. `priority` has no effect, and `content_type` names a codec of clients.
FIELDS = ("id", "inputs", "outputs", "parameters")
_PARAMETERS = ("timeout", "priority", "binary_data_output")
_INPUT_FIELDS = ("name", "shape", "datatype", "parameters", "data")
_INPUT_PARAMETERS = ("binary_data_size", "content_type")
MAX_INTEGER = 2**63  # integers of the protocol are below it
# The metadata of the server.
SERVER: dict[str, Any] = {
    "name": "keras_transformer",
    "version": importlib.metadata.version("keras-transformer-onnx"),
    "extensions": ["binary_tensor_data"],
}
_LENGTH = struct.Struct("<I")
_TEXT, _JSON = Format(), Format(json=True)
Fields: TypeAlias = dict[str, Any]


class Inference(NamedTuple):
    """The part of a request that is kept while it waits. Its JSON may be far larger.

    Attributes:
        items: list of str or bytes.
        shape: list of int.
        outputs: list of str, the names of the outputs to send.
        options: dict, of the search.
        seconds: float, the deadline that the request sets, or None.
    """

    items: list[Any]
    shape: list[int]
    outputs: list[str]
    options: dict[str, Any]
    seconds: float | None


def described(model: Model) -> Fields:
    """Returns the metadata of a model, with the keys of the protocol."""
    entry = {"datatype": "BYTES", "shape": [-1]}
    return {
        "name": model.name,
        "versions": [model.description.version],
        "platform": "keras_transformer_onnx",
        "inputs": [{"name": INPUT, **entry}],
        "outputs": [{"name": name, **entry} for name in OUTPUTS],
    }


def get_input(fields: Fields) -> Fields:
    """Returns the fields of the only input of a request, checked.

    Raises:
        Invalid: they are wrong.
    """
    inputs = get_objects(fields, "inputs")
    names = [tensor.get("name") for tensor in inputs]
    if names != [INPUT]:
        raise Invalid(f"The only input is {INPUT!r}, but there are {len(names)}: {shorten(names)}.")
    (tensor,) = inputs
    if tensor.get("datatype") != "BYTES":
        kind = shorten(tensor.get("datatype"))
        raise Invalid(f"The input {INPUT!r} has the type BYTES, not {kind}.")
    shape = tensor.get("shape")
    fits = isinstance(shape, list) and 1 <= len(shape) <= 8
    if not fits or not all(type(size) is int and 0 <= size < MAX_INTEGER for size in shape):
        raise Invalid(f"The shape is one to eight sizes, such as [2, 1], not {shorten(shape)}.")
    parameters = get_object(tensor, "parameters")
    if "shared_memory_region" in parameters:
        raise Invalid("Shared memory is not supported: send the data.")
    check_names(tensor, _INPUT_FIELDS, "input")
    check_names(parameters, _INPUT_PARAMETERS, "parameters of the input")
    return tensor


def parse(
    models: Models, model: Model, fields: Fields, shape: list[int], items: list[Any]
) -> Inference:
    """Checks the fields of a request for inference.

    Args:
        models, model: as the request names them.
        fields: dict, of the request, as in JSON.
        shape: list of int, of the input, as `get_input` returns it.
        items: list of str or bytes, the elements of the input. Too many are refused, so a reader
            may stop at the limit.

    Raises:
        Invalid, TooLarge: the request is wrong.
    """
    models.admission.check_lines(len(items))
    size = math.prod(shape)
    if len(items) != size:
        raise Invalid(f"The shape of {INPUT!r} asks for {size} elements; there are {len(items)}.")
    parameters = get_object(fields, "parameters")
    options = model.checked_options(parameters, len(items), _PARAMETERS)
    seconds = _timeout(parameters.get("timeout"))
    return Inference(items, shape, _outputs(get_objects(fields, "outputs")), options, seconds)


def _outputs(tensors: list[Fields]) -> list[str]:
    """Returns the names of the outputs to send; all if the request names none."""
    names = [tensor.get("name") for tensor in tensors[: 1 + len(OUTPUTS)]]
    for name in names:
        if name not in OUTPUTS:
            raise Invalid(f"There is no output {shorten(name)}. There are: {', '.join(OUTPUTS)}.")
    for tensor in tensors:
        if get_object(tensor, "parameters").keys() - {"binary_data"}:
            raise Invalid("The only known parameter of an output is binary_data.")
    if len(tensors) > len(set(names)):
        raise Invalid("The request names an output twice.")
    return names or list(OUTPUTS)


def _timeout(value: object) -> float | None:
    """Returns the seconds of the parameter `timeout`, which is in microseconds."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MAX_INTEGER:
        raise Invalid(f"The parameter timeout is a number of microseconds, not {shorten(value)}.")
    return value / 1e6 if value else None


def get_object(parent: Fields, key: str) -> Fields:
    """Returns an object in another one; an empty object if it is missing."""
    found = parent.get(key, {})
    if not isinstance(found, dict):
        raise Invalid(f"{key!r} must be an object.")
    return found


def get_objects(parent: Fields, key: str) -> list[Fields]:
    """Returns a list of objects in an object; an empty list if it is missing."""
    found = parent.get(key, [])
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise Invalid(f"{key!r} must be a list of objects.")
    return found


def unpacked(data: bytes, most: int) -> list[bytes]:
    """Returns the elements in binary data, at most one more than `most`."""
    items: list[bytes] = []
    place = 0
    while place < len(data) and len(items) <= most:
        start = place + _LENGTH.size
        if start > len(data):
            raise Invalid("The binary data ends within the length of an element.")
        place = start + _LENGTH.unpack_from(data, start - _LENGTH.size)[0]
        if place > len(data):
            raise Invalid("The binary data ends within an element.")
        items.append(data[start:place])
    return items


def packed(items: Sequence[bytes]) -> bytes:
    """Returns elements as binary data."""
    return b"".join(_LENGTH.pack(len(item)) + item for item in items)


def elements(name: str, results: Sequence[Any]) -> list[bytes]:
    """Returns the elements of an output."""
    if name == "error":
        return [(result.error or "").encode() for result in results]
    form = _TEXT if name == "text" else _JSON
    return [format_result(0, result, form).removesuffix(b"\n") for result in results]

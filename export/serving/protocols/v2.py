"""The Open Inference Protocol, version 2, over HTTP: JSON and the binary extension.

For every task, a model has one input and three outputs, all of type BYTES and of one shape, one
element per line:

| tensor | element |
| --- | --- |
| `text`, in | a line, as the command line reads it: UTF-8; JSON for models that read arrays |
| `text`, out | the line that the command line writes for it |
| `result`, out | the whole result, as JSON: hypotheses, scores, labels, spans, vectors |
| `error`, out | why there is no result, or nothing |

In the extension, a body is JSON, followed by the data of tensors. The header
`Inference-Header-Content-Length` is the length of the JSON. In binary, an element of type BYTES is
its length, four bytes, the lowest first, and its bytes.
"""

import importlib.metadata
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from keras_transformer.export.artefact.messages import shorten
from keras_transformer.export.runtime.lines import Format, format_result
from keras_transformer.export.serving.bodies import read_json
from keras_transformer.export.serving.endpoints import Call, endpoint, page
from keras_transformer.export.serving.fields import (
    ANY,
    FLAG,
    OBJECT,
    OBJECTS,
    Field,
    Kind,
    integer,
    one_of,
    read_fields,
)
from keras_transformer.export.serving.models import Model, Models
from keras_transformer.export.serving.refusals import Invalid

INPUT, OUTPUTS = "text", ("text", "result", "error")
MAX_INTEGER = 2**63 - 1  # of the protocol
_HEADER = "Inference-Header-Content-Length"
_LENGTH = struct.Struct("<I")
_TEXT, _JSON = Format(), Format(json=True)


def _is_shape(value: object) -> bool:
    if not isinstance(value, list) or not 1 <= len(value) <= 8:
        return False
    return all(type(size) is int and 0 <= size <= MAX_INTEGER for size in value)


SHAPE = Kind("one to eight sizes, such as [2, 1]", _is_shape)
LIST = Kind("a list of strings", lambda value: isinstance(value, list))
# `priority` has no effect, and `content_type` names a codec of clients.
REQUEST = (
    Field("id", ANY, ""),
    Field("inputs", OBJECTS, needed=True),
    Field("outputs", OBJECTS, ()),
    Field("parameters", OBJECT, {}),
)
PARAMETERS = (
    Field("timeout", integer(0, MAX_INTEGER), 0),  # microseconds; 0 is none
    Field("priority", ANY),
    Field("binary_data_output", ANY, False),
)
INPUT_FIELDS = (
    Field("name", one_of([INPUT]), needed=True),
    Field("shape", SHAPE, needed=True),
    Field("datatype", one_of(["BYTES"]), needed=True),
    Field("parameters", OBJECT, {}),
    Field("data", LIST),
)
INPUT_PARAMETERS = (
    Field("binary_data_size", integer(0, MAX_INTEGER)),
    Field("content_type", ANY),
)
OUTPUT = (Field("name", one_of(OUTPUTS), needed=True), Field("parameters", OBJECT, {}))
OUTPUT_PARAMETERS = (Field("binary_data", FLAG),)


def routes(models: Models) -> list[Route]:
    """Returns the routes of the protocol."""
    made = [
        page(models, "/v2", _server),
        page(models, "/v2/health/live", lambda models, request: {"live": True}),
        page(models, "/v2/health/ready", _ready),
    ]
    for version in ("", "/versions/{version}"):
        path = f"/v2/models/{{model}}{version}"
        made += [page(models, path, _described), page(models, f"{path}/ready", _ready)]
        made.append(endpoint(models, f"{path}/infer", "v2-http", _call, _answer))
    return made


def _server(models: Models, request: Request) -> dict[str, Any]:
    version = importlib.metadata.version("keras-transformer-onnx")
    extensions = ["binary_tensor_data"]
    return {"name": "keras_transformer", "version": version, "extensions": extensions}


def _ready(models: Models, request: Request) -> dict[str, Any]:
    if "model" not in request.path_params:
        models.check_ready()
        return {"ready": True}
    model = _model(models, request)
    models.check_ready(model)
    return {"name": model.name, "ready": True}


def _described(models: Models, request: Request) -> dict[str, Any]:
    model = _model(models, request)
    entry = {"datatype": "BYTES", "shape": [-1]}
    return {
        "name": model.name,
        "versions": [model.description.version],
        "platform": "keras_transformer_onnx",
        "inputs": [{"name": INPUT, **entry}],
        "outputs": [{"name": name, **entry} for name in OUTPUTS],
    }


def _model(models: Models, request: Request) -> Model:
    return models.get(request.path_params["model"], request.path_params.get("version", ""))


def _call(models: Models, request: Request, body: bytes) -> Call:
    model = _model(models, request)
    header, binary = _split(body, request.headers)
    fields = read_fields(read_json(header), REQUEST)
    if len(fields["inputs"]) != 1:
        raise Invalid(f"The only input is {INPUT!r}, but there are {len(fields['inputs'])}.")
    tensor = read_fields(fields["inputs"][0], INPUT_FIELDS, "The input")
    items = _elements(tensor, binary, models.limits.lines)
    models.admission.check_lines(len(items))
    shape = tensor["shape"]
    if len(items) != math.prod(shape):
        raise Invalid(
            f"The shape of {INPUT!r} asks for {math.prod(shape)} elements; there are {len(items)}."
        )
    values = read_fields(fields["parameters"], PARAMETERS, has_options=True)
    options = model.checked_options(fields["parameters"], len(items), PARAMETERS)
    binary_of = _outputs(fields["outputs"], values["binary_data_output"] is True)
    answer = {"id": _id(fields["id"]), "shape": shape, "outputs": binary_of}
    return Call(model, items, options, answer, values["timeout"] / 1e6 or None)


def _split(body: bytes, headers: Headers) -> tuple[bytes, bytes]:
    """Returns the JSON and the binary part of a body."""
    length = headers.get(_HEADER)
    if length is None:
        return body, b""
    digits = length.isascii() and length.isdigit() and len(length) < 20
    if not digits or int(length) > len(body):
        raise Invalid(f"{_HEADER} is {shorten(length)}; the body has {len(body)} bytes.")
    return body[: int(length)], body[int(length) :]


def _elements(tensor: Mapping[str, Any], binary: bytes, most: int) -> list[Any]:
    """Returns the elements of the input, str from JSON or bytes from binary data.

    There is at most one more than `most`, which is then refused.
    """
    if "shared_memory_region" in tensor["parameters"]:
        raise Invalid("Shared memory is not supported: send the data.")
    values = read_fields(tensor["parameters"], INPUT_PARAMETERS, "The parameters of the input")
    length, data = values["binary_data_size"], tensor["data"]
    if length is None and not binary and data is not None:
        return _flat(data, most)
    if length != len(binary) or data is not None:
        raise Invalid(
            "The input must have data, a list of strings, or the binary_data_size "
            f"{len(binary)}, but not both."
        )
    return _unpacked(binary, most)


def _flat(data: list[Any], most: int) -> list[str]:
    """Returns the strings in nested lists, in order, at most one more than `most`."""
    items: list[str] = []
    left: list[Iterator[Any]] = [iter(data)]
    while left and len(items) <= most:
        entry = next(left[-1], left)
        if entry is left:  # the list is at its end
            left.pop()
        elif isinstance(entry, str):
            items.append(entry)
        elif isinstance(entry, list):
            left.append(iter(entry))
        else:
            raise Invalid(f"An element of type BYTES is a string, not {type(entry).__name__}.")
    return items


def _unpacked(data: bytes, most: int) -> list[bytes]:
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


def _outputs(asked: Sequence[Mapping[str, Any]], is_binary: bool) -> dict[str, bool]:
    """Returns for each output to send whether it is sent as binary data; all by default."""
    found: dict[str, bool] = {}
    for output in asked:
        values = read_fields(output, OUTPUT, "An output")
        flag = read_fields(values["parameters"], OUTPUT_PARAMETERS, "The parameters of an output")
        if values["name"] in found:
            raise Invalid("The request names an output twice.")
        binary = flag["binary_data"]
        found[values["name"]] = is_binary if binary is None else binary
    return found or dict.fromkeys(OUTPUTS, is_binary)


def _id(found: object) -> str:
    """Returns the id of a request; empty if it has none."""
    if not isinstance(found, str):
        return ""
    try:
        found.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"The id {shorten(found)} is not UTF-8.") from error
    return found


def _answer(call: Call, results: Sequence[Any], tokens: int) -> Response:
    outputs, parts = [], []
    for name, is_binary in call.values["outputs"].items():
        items = _results(name, results)
        output = {"name": name, "datatype": "BYTES", "shape": call.values["shape"]}
        if is_binary:
            parts.append(b"".join(_LENGTH.pack(len(item)) + item for item in items))
            output["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            output["data"] = [item.decode() for item in items]
        outputs.append(output)
    fields = {"model_name": call.model.name, "model_version": call.model.description.version}
    if call.values["id"]:
        fields["id"] = call.values["id"]
    header = json.dumps(fields | {"outputs": outputs}, ensure_ascii=False).encode()
    if not parts:
        return Response(header, media_type="application/json")
    headers = {_HEADER: str(len(header))}
    return Response(
        b"".join([header, *parts]), headers=headers, media_type="application/octet-stream"
    )


def _results(name: str, results: Sequence[Any]) -> list[bytes]:
    """Returns the elements of an output."""
    if name == "error":
        return [(result.error or "").encode() for result in results]
    form = _TEXT if name == "text" else _JSON
    return [format_result(0, result, form).removesuffix(b"\n") for result in results]

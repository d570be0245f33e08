"""The Open Inference Protocol, version 2, over HTTP: JSON and the binary extension.

In the extension, a body is JSON, followed by the data of tensors. The header
`Inference-Header-Content-Length` is the length of the JSON.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from keras_transformer.export.artefact.messages import shorten
from keras_transformer.export.serving import tensors
from keras_transformer.export.serving.bodies import read_json, request_seconds
from keras_transformer.export.serving.limits import RESULT_BYTES, on_thread_if_large
from keras_transformer.export.serving.models import Model, Models
from keras_transformer.export.serving.refusals import Invalid
from keras_transformer.export.serving.request_log import Record
from keras_transformer.export.serving.request_options import check_names

_HEADER = "Inference-Header-Content-Length"


class _Parsed(NamedTuple):
    inference: tensors.Inference
    binary: set[str]  # names of outputs that are sent as binary data
    id: str


def routes(models: Models, make_endpoint: Any) -> list[Route]:
    """Returns the routes.

    Args:
        models: `Models`.
        make_endpoint: function of a protocol's name, a handler and, optionally, the maximum bytes
            of a body. It returns an endpoint, which counts requests and reads their bodies.
    """

    async def metadata(request: Request) -> Response:
        return JSONResponse(tensors.SERVER)

    async def live(request: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(request: Request) -> Response:
        models.check_ready()
        return JSONResponse({"ready": True})

    async def model_metadata(request: Request) -> Response:
        return JSONResponse(tensors.described(_model(models, request)))

    async def model_ready(request: Request) -> Response:
        model = _model(models, request)
        models.check_ready(model)
        return JSONResponse({"name": model.name, "ready": True})

    async def infer(request: Request, body: bytes, record: Record) -> Response:
        model = _model(models, request)
        record.model = model.name
        parsed = await on_thread_if_large(len(body), _parse, models, model, request.headers, body)
        given = parsed.inference
        results = await models.answer(record, model, given.items, given.options, given.seconds)
        size = len(body) + RESULT_BYTES * len(results)
        return await on_thread_if_large(size, _response, model, parsed, results)

    model_routes = [("", model_metadata, "GET"), ("/ready", model_ready, "GET")]
    model_routes.append(("/infer", make_endpoint("v2-http", infer), "POST"))
    return [
        Route("/v2", metadata),
        Route("/v2/health/live", live),
        Route("/v2/health/ready", ready),
        *(
            Route(f"/v2/models/{{model}}{version}{end}", endpoint, methods=[method])
            for version in ("", "/versions/{version}")
            for end, endpoint, method in model_routes
        ),
    ]


def _model(models: Models, request: Request) -> Model:
    return models.get(request.path_params["model"], request.path_params.get("version", ""))


def _parse(models: Models, model: Model, headers: Headers, body: bytes) -> _Parsed:
    header, binary = _split(body, headers)
    fields = read_json(header)
    check_names(fields, tensors.FIELDS)
    tensor = tensors.get_input(fields)
    items = _elements(tensor, binary, models.limits.lines)
    inference = tensors.parse(models, model, fields, tensor["shape"], items)
    if inference.seconds is None:
        inference = inference._replace(seconds=request_seconds(headers))
    return _Parsed(inference, _binary_outputs(fields, inference.outputs), _id(fields))


def _split(body: bytes, headers: Headers) -> tuple[bytes, bytes]:
    """Returns the JSON and the binary part of a body."""
    length = headers.get(_HEADER)
    if length is None:
        return body, b""
    digits = length.isascii() and length.isdigit() and len(length) < 20
    if not digits or int(length) > len(body):
        raise Invalid(f"{_HEADER} is {shorten(length)}; the body has {len(body)} bytes.")
    return body[: int(length)], body[int(length) :]


def _elements(tensor: tensors.Fields, binary: bytes, most: int) -> list[Any]:
    """Returns the elements of the input, str from JSON or bytes from binary data."""
    length = tensors.get_object(tensor, "parameters").get("binary_data_size")
    if length is None:
        if binary:
            raise Invalid("There is binary data, but no input with binary_data_size.")
        return _flat(tensor.get("data"), most)
    if type(length) is not int or length != len(binary):
        raise Invalid(f"binary_data_size is {shorten(length)}; there are {len(binary)} bytes.")
    if "data" in tensor:
        raise Invalid("The input has both data and binary_data_size.")
    return tensors.unpacked(binary, most)


def _flat(data: object, most: int) -> list[str]:
    """Returns the strings in nested lists, in order, at most one more than `most`."""
    if not isinstance(data, list):
        raise Invalid("The input has no data: a list of strings.")
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


def _binary_outputs(fields: tensors.Fields, names: list[str]) -> set[str]:
    """Returns the names of the outputs that are sent as binary data."""
    default = tensors.get_object(fields, "parameters").get("binary_data_output", False) is True
    binary = {name for name in names if default}
    for output in tensors.get_objects(fields, "outputs"):
        options = tensors.get_object(output, "parameters")
        if "binary_data" in options:
            binary.discard(output["name"])
            binary |= {output["name"]} if options["binary_data"] is True else set()
    return binary


def _id(fields: tensors.Fields) -> str:
    """Returns the id of a request; empty if it has none."""
    found = fields.get("id", "")
    if not isinstance(found, str):
        return ""
    try:
        found.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"The id {shorten(found)} is not UTF-8.") from error
    return found


def _response(model: Model, parsed: _Parsed, results: Sequence[Any]) -> Response:
    outputs, parts = [], []
    for name in parsed.inference.outputs:
        items = tensors.elements(name, results)
        output = {"name": name, "datatype": "BYTES", "shape": parsed.inference.shape}
        if name in parsed.binary:
            parts.append(tensors.packed(items))
            output["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            output["data"] = [item.decode() for item in items]
        outputs.append(output)
    fields = {"model_name": model.name, "model_version": model.description.version}
    if parsed.id:
        fields["id"] = parsed.id
    header = json.dumps(fields | {"outputs": outputs}, ensure_ascii=False).encode()
    if not parts:
        return Response(header, media_type="application/json")
    headers = {_HEADER: str(len(header))}
    return Response(
        b"".join([header, *parts]), headers=headers, media_type="application/octet-stream"
    )

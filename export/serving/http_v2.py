"""The door of the Open Inference Protocol, version 2, over HTTP: JSON and the binary extension.

In the extension a body is JSON and, behind it, the data of tensors; the header
`Inference-Header-Content-Length` says where the JSON ends.
"""

import importlib.metadata
import json
from typing import NamedTuple

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from keras_transformer.export.serving import tensors
from keras_transformer.export.serving.bodies import aside, read_json, request_seconds
from keras_transformer.export.serving.limits import Invalid, Unavailable, shown

NAME = "keras_transformer"
VERSION = importlib.metadata.version("keras-transformer-onnx")
EXTENSIONS = ["binary_tensor_data"]
_HEADER = "Inference-Header-Content-Length"


def routes(models, door):
    """The routes; `door(name, handler)` makes an endpoint that counts and refuses requests."""

    async def metadata(request):
        return JSONResponse({"name": NAME, "version": VERSION, "extensions": EXTENSIONS})

    async def live(request):
        return JSONResponse({"live": True})

    async def ready(request):
        if not models.ready:
            raise Unavailable("The service is shutting down, or a model has no live worker.")
        return JSONResponse({"ready": True})

    async def model_metadata(request):
        return JSONResponse(tensors.described(_model(models, request)))

    async def model_ready(request):
        model = _model(models, request)
        await ready(request)
        return JSONResponse({"name": model.name, "ready": True})

    async def infer(request, body, record):
        return await _infer(models, request, body, record)

    made = [
        Route("/v2", metadata),
        Route("/v2/health/live", live),
        Route("/v2/health/ready", ready),
    ]
    for place in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        made += [
            Route(place, model_metadata),
            Route(f"{place}/ready", model_ready),
            Route(f"{place}/infer", door("v2-http", infer), methods=["POST"]),
        ]
    return made


def _model(models, request):
    return models.get(request.path_params["model"], request.path_params.get("version", ""))


class _Asked(NamedTuple):
    """The part of a request that is kept while it waits. Its JSON may be far larger."""

    items: list
    shape: list
    outputs: dict
    seconds: float | None
    seed: int | None
    id: str


async def _infer(models, request, body, record):
    model = _model(models, request)
    record.model = model.name
    asked = await aside(len(body), _asked, models, model, request.headers, body)
    results = await models.answer(record, model, asked.items, asked.seed, asked.seconds)
    return await aside(len(body), _response, model, asked, results)


def _asked(models, model, headers, body):
    header, binary = _split(body, headers)
    asked = read_json(header)
    parameters = _object(asked, "parameters")
    items, shape = _items(asked, binary, models)
    seconds = tensors.timeout(parameters.get("timeout"))
    if seconds is None:
        seconds = request_seconds(headers)
    seed = model.seed(parameters.get("seed"))
    return _Asked(items, shape, _outputs(asked, parameters), seconds, seed, _id(asked))


def _id(asked):
    """The id of a request; empty where it has none."""
    found = asked.get("id", "")
    if not isinstance(found, str):
        return ""
    try:
        found.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"The id {shown(found)} is not UTF-8.") from error
    return found


def _split(body, headers):
    """The JSON and the binary part of a body."""
    length = headers.get(_HEADER)
    if length is None:
        return body, b""
    digits = length.isascii() and length.isdigit() and len(length) < 20
    if not digits or int(length) > len(body):
        raise Invalid(f"{_HEADER} is {shown(length)}; the body has {len(body)} bytes.")
    return body[: int(length)], body[int(length) :]


def _object(parent, key):
    found = parent.get(key, {})
    if not isinstance(found, dict):
        raise Invalid(f"{key!r} is no object.")
    return found


def _objects(parent, key):
    found = parent.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise Invalid(f"{key!r} is no list of objects.")
    return found


def _items(asked, binary, models):
    """The elements of the input, bytes or str, and its shape."""
    inputs = _objects(asked, "inputs")
    names = [one.get("name") for one in inputs]
    (one,) = inputs if len(inputs) == 1 else ({},)
    shape = one.get("shape")
    size = tensors.check_input(names, one.get("datatype"), shape)
    parameters, most = _object(one, "parameters"), models.limits.lines
    if "shared_memory_region" in parameters:
        raise Invalid("Shared memory is not read: send the data.")
    length = parameters.get("binary_data_size")
    if length is None:
        if binary:
            raise Invalid("There is binary data, and no input with binary_data_size.")
        items = _flat(one.get("data"), most)
    elif type(length) is not int or length != len(binary):
        raise Invalid(f"binary_data_size is {shown(length)}; there are {len(binary)} bytes.")
    elif "data" in one:
        raise Invalid("The input has both data and binary_data_size.")
    else:
        items = tensors.unpacked(binary, most)
    models.check_lines(len(items))
    return tensors.check_size(items, size), shape


def _flat(data, most):
    """The strings in nested lists, in order; no more than one above `most`."""
    if not isinstance(data, list):
        raise Invalid("The input has no data: a list of strings.")
    items, left = [], [iter(data)]
    while left and len(items) <= most:
        for one in left[-1]:
            if isinstance(one, list):
                left.append(iter(one))
                break
            if not isinstance(one, str):
                raise Invalid(f"An element of type BYTES is a string, not {type(one).__name__}.")
            items.append(one)
            if len(items) > most:
                break
        else:
            left.pop()
    return items


def _outputs(asked, parameters):
    """Dict from names of the outputs to send to whether they are sent as binary data."""
    default = parameters.get("binary_data_output", False) is True
    entries = _objects(asked, "outputs")
    names = tensors.asked_outputs([entry.get("name") for entry in entries])
    as_binary = dict.fromkeys(names, default)
    for entry in entries:
        options = _object(entry, "parameters")
        if "classification" in options or "shared_memory_region" in options:
            raise Invalid("Of an output's parameters only binary_data is known.")
        as_binary[entry["name"]] = options.get("binary_data", default) is True
    return as_binary


def _response(model, asked, results):
    answer = {"model_name": model.name, "model_version": model.description.version}
    if asked.id:
        answer["id"] = asked.id
    answer["outputs"], binary = [], []
    for name, as_binary in asked.outputs.items():
        items = tensors.elements(name, results)
        entry = {"name": name, "datatype": "BYTES", "shape": asked.shape}
        if as_binary:
            binary.append(tensors.packed(items))
            entry["parameters"] = {"binary_data_size": len(binary[-1])}
        else:
            entry["data"] = [item.decode() for item in items]
        answer["outputs"].append(entry)
    header = json.dumps(answer, ensure_ascii=False).encode()
    if not binary:
        return Response(header, media_type="application/json")
    headers = {_HEADER: str(len(header))}
    return Response(
        b"".join([header, *binary]), media_type="application/octet-stream", headers=headers
    )

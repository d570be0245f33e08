"""The door of the Open Inference Protocol, version 2, over HTTP: JSON and the binary extension.

In the extension a body is JSON and, behind it, the data of tensors; the header
`Inference-Header-Content-Length` says where the JSON ends.
"""

import importlib.metadata
import json

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from keras_transformer.export.serving import tensors
from keras_transformer.export.serving.bodies import read_json, request_seconds
from keras_transformer.export.serving.refusals import Invalid, Unavailable

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
            raise Unavailable("The service is going down, or has no model yet.")
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


async def _infer(models, request, body, record):
    model = _model(models, request)
    record.model = model.name
    header, binary = _split(body, request.headers)
    asked = read_json(header)
    parameters = _object(asked, "parameters")
    items = _items(asked, binary)
    outputs, as_binary = _outputs(asked, parameters)
    seconds = tensors.timeout(parameters.get("timeout"))
    if seconds is None:
        seconds = request_seconds(request.headers)
    seed = model.seed(parameters.get("seed"))
    results = await models.answer(record, model, items, seed, seconds)
    answer = {"model_name": model.name, "model_version": model.description.version}
    if isinstance(asked.get("id"), str) and asked["id"]:
        answer["id"] = asked["id"]
    return _response(answer, outputs, as_binary, results, asked["inputs"][0]["shape"])


def _split(body, headers):
    """The JSON and the binary part of a body."""
    length = headers.get(_HEADER)
    if length is None:
        return body, b""
    if not (length.isascii() and length.isdigit()) or int(length[:20]) > len(body):
        raise Invalid(f"{_HEADER} is {length[:20]!r}; the body has {len(body)} bytes.")
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


def _items(asked, binary):
    """The elements of the input, bytes or str."""
    inputs = _objects(asked, "inputs")
    names = [one.get("name") for one in inputs]
    (one,) = inputs if len(inputs) == 1 else ({},)
    size = tensors.check_input(names, one.get("datatype"), one.get("shape"))
    parameters = _object(one, "parameters")
    if "shared_memory_region" in parameters:
        raise Invalid("Shared memory is not read: send the data.")
    length = parameters.get("binary_data_size")
    if length is None:
        if binary:
            raise Invalid("There is binary data, and no input with binary_data_size.")
        return tensors.check_size(_flat(one.get("data")), size)
    if type(length) is not int or length != len(binary):
        raise Invalid(f"binary_data_size is {length!r}; there are {len(binary)} bytes.")
    if "data" in one:
        raise Invalid("The input has both data and binary_data_size.")
    return tensors.check_size(tensors.unpacked(binary), size)


def _flat(data):
    """The strings in nested lists, in order."""
    if not isinstance(data, list):
        raise Invalid("The input has no data: a list of strings.")
    items, left = [], [iter(data)]
    while left:
        for one in left[-1]:
            if isinstance(one, list):
                left.append(iter(one))
                break
            if not isinstance(one, str):
                raise Invalid(f"An element of type BYTES is a string, not {type(one).__name__}.")
            items.append(one)
        else:
            left.pop()
    return items


def _outputs(asked, parameters):
    """Names of the outputs to send, and for each whether as binary data."""
    default = parameters.get("binary_data_output", False) is True
    entries = _objects(asked, "outputs")
    names = tensors.asked_outputs([entry.get("name") for entry in entries])
    as_binary = dict.fromkeys(names, default)
    for entry in entries:
        options = _object(entry, "parameters")
        if "classification" in options or "shared_memory_region" in options:
            raise Invalid("Of an output's parameters only binary_data is known.")
        as_binary[entry["name"]] = options.get("binary_data", default) is True
    return names, as_binary


def _response(answer, outputs, as_binary, results, shape):
    answer["outputs"], binary = [], []
    for name in outputs:
        items = tensors.elements(name, results)
        entry = {"name": name, "datatype": "BYTES", "shape": shape}
        if as_binary[name]:
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

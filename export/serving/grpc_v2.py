"""The door of the Open Inference Protocol, version 2, over gRPC.

Requests are taken as bytes and parsed here, so that one that cannot be parsed is answered with
INVALID_ARGUMENT, as every other request that is wrong.
"""

import asyncio
import contextlib
import logging

import grpc
from google.protobuf.message import DecodeError

from keras_transformer.export.serving import tensors
from keras_transformer.export.serving.bodies import aside
from keras_transformer.export.serving.http_v2 import EXTENSIONS, NAME, VERSION
from keras_transformer.export.serving.limits import (
    FAILED,
    MOST,
    Busy,
    Invalid,
    Refusal,
    TooLarge,
    TooSlow,
    Unknown,
)
from keras_transformer.export.serving.messages import MESSAGES, count_fields

logger = logging.getLogger("keras_transformer.serving")
SERVICE = "inference.GRPCInferenceService"
# Fields of a request beside its lines.
FIELDS = 100


def make_server(models, address):
    """The server, bound and not started, and its port.

    Args:
        models: `Models`.
        address: str, `host:port`; port 0 is any free one.

    Raises:
        RuntimeError: the port is taken.
    """
    limits = models.limits
    longest = limits.read_seconds + limits.deadline_seconds + limits.write_seconds
    options = [
        ("grpc.max_receive_message_length", limits.body_bytes),
        ("grpc.so_reuseport", 0),  # two services at one port would share its requests
        # A connection ends after a while, with the answers that its client has not taken. Clients
        # connect again; a request that was begun has all the time that it may take.
        ("grpc.max_connection_age_ms", _milliseconds(limits.deadline_seconds)),
        ("grpc.max_connection_age_grace_ms", _milliseconds(longest)),
    ]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limits.open_requests)
    door = _Door(models)
    # gRPC holds all of a request before a method gets it. So no more are read at the same time
    # than `held_bytes` has room for, each as large as it may be; others wait. Health and metadata
    # are asked for with a few bytes, and do not wait.
    reading = asyncio.Semaphore(max(1, limits.held_bytes // limits.body_bytes))
    small = ("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata")
    rooms = dict.fromkeys(small, contextlib.nullcontext()) | {"ModelInfer": reading}
    methods = {
        # As a stream of requests, so that a method begins before its request is read.
        name: grpc.stream_unary_rpc_method_handler(_method(models, room, name, getattr(door, name)))
        for name, room in rooms.items()
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
    return server, server.add_insecure_port(address)


def _milliseconds(seconds):
    return max(1, min(MOST, round(1000 * seconds)))


def _method(models, room, name, answer):
    """A method from bytes to bytes."""
    seconds = models.limits.read_seconds

    async def read(context):
        begun = False
        try:
            async with asyncio.timeout(seconds), room:
                begun = True
                data = await context.read()
        except TimeoutError as error:
            if not begun:
                raise Busy("Too many requests are being read. Repeat it later.") from error
            raise TooSlow(f"The request did not arrive in {seconds:g} seconds.") from error
        return b"" if data is grpc.aio.EOF else data

    def parse(data):
        most = models.limits.lines + FIELDS
        try:
            if count_fields(name + "Request", data, most) > most:
                raise TooLarge(f"A request may have {most} fields.")
            return MESSAGES[name + "Request"].FromString(data)
        except DecodeError as error:
            raise Invalid("The request cannot be parsed.") from error

    def written(response):
        return MESSAGES[name + "Response"](**response).SerializeToString()

    async def method(requests, context):
        try:
            data = await read(context)
            with models.holding() as add:
                add(len(data))
                request = await aside(len(data), parse, data)
                response = await answer(request, context)
                return await aside(len(data), written, response)
        except Refusal as refusal:
            code, reason = getattr(grpc.StatusCode, refusal.code), str(refusal)
        except Exception:  # of any kind: gRPC would send its text
            logger.exception("a request has failed")
            code, reason = grpc.StatusCode.INTERNAL, FAILED
        await context.abort(code, reason)

    return method


class _Door:
    """The methods of the protocol: each takes a request and gives the fields of a response."""

    def __init__(self, models):
        self._models = models

    async def ServerLive(self, request, context):
        return {"live": True}

    async def ServerReady(self, request, context):
        return {"ready": self._models.ready}

    async def ServerMetadata(self, request, context):
        return {"name": NAME, "version": VERSION, "extensions": EXTENSIONS}

    async def ModelReady(self, request, context):
        try:
            self._models.get(request.name, request.version)
        except Unknown:
            return {"ready": False}
        return {"ready": self._models.ready}

    async def ModelMetadata(self, request, context):
        return tensors.described(self._models.get(request.name, request.version))

    async def ModelInfer(self, request, context):
        with self._models.request("v2-grpc") as record, self._models.answering():
            return await self._infer(request, context, record)

    async def _infer(self, request, context, record):
        model = self._models.get(request.model_name, request.model_version)
        record.model = model.name
        items, shape = _items(request, self._models)
        outputs = tensors.asked_outputs([output.name for output in request.outputs])
        parameters = {entry.key: _value(entry.value) for entry in request.parameters}
        limits = [tensors.timeout(parameters.get("timeout")), context.time_remaining()]
        seconds = min((limit for limit in limits if limit is not None), default=None)
        seed = model.seed(parameters.get("seed"))
        results = await self._models.answer(record, model, items, seed, seconds)
        response = {
            "model_name": model.name,
            "model_version": model.description.version,
            "id": request.id,
        }
        raw = bool(request.raw_input_contents)
        size = sum(map(len, items))
        return response | await aside(size, _outputs, outputs, results, shape, raw)


def _outputs(names, results, shape, raw):
    """The fields of a response that hold the outputs."""
    described, contents = [], []
    for name in names:
        elements = tensors.elements(name, results)
        tensor = {"name": name, "datatype": "BYTES", "shape": shape}
        if raw:
            contents.append(tensors.packed(elements))
        else:
            tensor["contents"] = {"bytes_contents": elements}
        described.append(tensor)
    return {"outputs": described, "raw_output_contents": contents}


def _items(request, models):
    """The elements of the input, a list of bytes, and its shape."""
    names = [tensor.name for tensor in request.inputs]
    tensor = request.inputs[0] if len(names) == 1 else MESSAGES["InferTensor"]()
    shape, raw = list(tensor.shape), request.raw_input_contents
    size = tensors.check_input(names, tensor.datatype, shape)
    if any(entry.key == "shared_memory_region" for entry in tensor.parameters):
        raise Invalid("Shared memory is not read: send the data.")
    if raw and (len(raw) != 1 or tensor.HasField("contents")):
        raise Invalid("raw_input_contents has one element for each input, in place of contents.")
    contents = tensor.contents.bytes_contents
    items = tensors.unpacked(raw[0], models.limits.lines) if raw else list(contents)
    models.check_lines(len(items))
    return tensors.check_size(items, size), shape


def _value(parameter):
    """The value of an `InferParameter`; None where it has none."""
    kind = parameter.WhichOneof("parameter_choice")
    return getattr(parameter, kind) if kind else None

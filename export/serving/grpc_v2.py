"""The Open Inference Protocol, version 2, over gRPC.

Requests arrive as bytes and are parsed here, so that a request that cannot be parsed gets the code
INVALID_ARGUMENT, like every other wrong request.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from keras_transformer.export.serving import tensors
from keras_transformer.export.serving.limits import GRPC_FIELDS, MAX_LIMIT, on_thread_if_large
from keras_transformer.export.serving.messages import MESSAGES, count_fields
from keras_transformer.export.serving.models import Models
from keras_transformer.export.serving.refusals import (
    FAILED,
    Busy,
    Invalid,
    Refusal,
    TooLarge,
    TooSlow,
    Unknown,
)

logger: logging.Logger = logging.getLogger("keras_transformer.serving")
SERVICE = "inference.GRPCInferenceService"
Context = grpc.aio.ServicerContext


def make_server(models: Models, address: str) -> tuple[grpc.aio.Server, int]:
    """Makes the server, bound but not started.

    Args:
        models: `Models`.
        address: str, `host:port`; port 0 is any free one.

    Returns:
        The server and its port.

    Raises:
        RuntimeError: the port is taken.
    """
    limits = models.limits
    longest = limits.read_seconds + limits.deadline_seconds + limits.write_seconds
    options = [
        ("grpc.max_receive_message_length", limits.body_bytes),
        ("grpc.so_reuseport", 0),  # two services at one port would share its requests
        # A connection ends after a while, with the responses that its client has not read. Clients
        # connect again; a request that has begun keeps all its time.
        ("grpc.max_connection_age_ms", _milliseconds(limits.deadline_seconds)),
        ("grpc.max_connection_age_grace_ms", _milliseconds(longest)),
    ]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limits.open_requests)
    # gRPC holds all of a request before a method gets it. So `buffered_bytes` limits the requests
    # that are read at the same time, each counted at its maximum size; others wait. Requests for
    # health and metadata have a few bytes, and do not wait.
    reading = asyncio.Semaphore(max(1, limits.buffered_bytes // limits.body_bytes))
    service = _Service(models)
    methods = {}
    for name in ("ServerLive", "ServerReady", "ServerMetadata", "ModelReady", "ModelMetadata"):
        methods[name] = _Method(models, name, getattr(service, name), contextlib.nullcontext())
    methods["ModelInfer"] = _Method(models, "ModelInfer", service.ModelInfer, reading)
    handlers = {
        # As a stream of requests, so that a method begins before its request is read.
        name: grpc.stream_unary_rpc_method_handler(method.call)
        for name, method in methods.items()
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    return server, server.add_insecure_port(address)


def _milliseconds(seconds: float) -> int:
    return max(1, min(MAX_LIMIT, round(1000 * seconds)))


class _Method:
    """A method from bytes to bytes.

    Args:
        models: `Models`.
        name: str.
        respond: async function from a request and its context to the fields of the response.
        reading: async context manager; requests are read within it.
    """

    def __init__(
        self,
        models: Models,
        name: str,
        respond: Callable[[Any, Context], Awaitable[tensors.Fields]],
        reading: contextlib.AbstractAsyncContextManager[Any],
    ) -> None:
        self._admission, self._limits = models.admission, models.limits
        self._respond, self._reading, self._name = respond, reading, name

    async def call(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        """Answers a call of gRPC."""
        try:
            data = await self._read(context)
            self._admission.buffer(len(data))
            try:
                request = await on_thread_if_large(len(data), self._parse, data)
                fields = await self._respond(request, context)
                return await on_thread_if_large(len(data), self._serialize, fields)
            finally:
                self._admission.free(len(data))
        except Refusal as refusal:
            code, reason = getattr(grpc.StatusCode, refusal.code), str(refusal)
        except Exception:  # of any kind: gRPC would send its text
            logger.exception("a request has failed")
            code, reason = grpc.StatusCode.INTERNAL, FAILED
        await context.abort(code, reason)
        raise AssertionError  # `abort` has raised

    async def _read(self, context: Context) -> bytes:
        seconds, begun = self._limits.read_seconds, False
        try:
            async with asyncio.timeout(seconds), self._reading:
                begun = True
                data = await context.read()
        except TimeoutError as error:
            if not begun:
                raise Busy("Too many requests are being read. Repeat it later.") from error
            raise TooSlow(f"The request did not arrive in {seconds:g} seconds.") from error
        return b"" if data is grpc.aio.EOF else data

    def _parse(self, data: bytes) -> Message:
        most, name = self._limits.lines + GRPC_FIELDS, self._name + "Request"
        try:
            if count_fields(name, data, most) > most:
                raise TooLarge(f"A request may have {most} fields.")
            return MESSAGES[name].FromString(data)
        except DecodeError as error:
            raise Invalid("The request cannot be parsed.") from error

    def _serialize(self, fields: tensors.Fields) -> bytes:
        return MESSAGES[self._name + "Response"](**fields).SerializeToString()


class _Service:
    """The methods of the protocol: each takes a request and returns the fields of a response."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def ServerLive(self, request: Any, context: Context) -> tensors.Fields:
        return {"live": True}

    async def ServerReady(self, request: Any, context: Context) -> tensors.Fields:
        return {"ready": self._models.ready}

    async def ServerMetadata(self, request: Any, context: Context) -> tensors.Fields:
        return tensors.SERVER

    async def ModelReady(self, request: Any, context: Context) -> tensors.Fields:
        try:
            model = self._models.get(request.name, request.version)
        except Unknown:
            return {"ready": False}
        return {"ready": self._models.is_ready(model)}

    async def ModelMetadata(self, request: Any, context: Context) -> tensors.Fields:
        return tensors.described(self._models.get(request.name, request.version))

    async def ModelInfer(self, request: Any, context: Context) -> tensors.Fields:
        models = self._models
        with models.request("v2-grpc") as record, models.admission.limit_computing():
            model = models.get(request.model_name, request.model_version)
            record.model = model.name
            fields = _fields(request)
            shape = tensors.get_input(fields)["shape"]
            elements = _elements(request, models.limits.lines)
            inference = tensors.parse(models, model, fields, shape, elements)
            limits = [inference.seconds, context.time_remaining()]
            seconds = min((limit for limit in limits if limit is not None), default=None)
            items = inference.items
            results = await models.answer(record, model, items, inference.options, seconds)
            raw, size = bool(request.raw_input_contents), sum(map(len, items))
            outputs = await on_thread_if_large(size, _outputs, inference, results, raw)
            return outputs | {
                "model_name": model.name,
                "model_version": model.description.version,
                "id": request.id,
            }


def _fields(request: Any) -> tensors.Fields:
    """Returns a request as the fields that it has in JSON, without the elements of tensors."""
    inputs = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.shape),
            "parameters": {entry.key: None for entry in tensor.parameters},
        }
        for tensor in request.inputs
    ]
    return {
        "inputs": inputs,
        "outputs": [
            {
                "name": output.name,
                "parameters": {entry.key: None for entry in output.parameters},
            }
            for output in request.outputs
        ],
        "parameters": {entry.key: _value(entry.value) for entry in request.parameters},
    }


def _value(parameter: Any) -> Any:
    """Returns the value of an `InferParameter`, or None."""
    kind = parameter.WhichOneof("parameter_choice")
    return getattr(parameter, kind) if kind else None


def _elements(request: Any, most: int) -> list[bytes]:
    """Returns the elements of the only input."""
    (tensor,), raw = request.inputs, request.raw_input_contents
    if not raw:
        return list(tensor.contents.bytes_contents)
    if len(raw) != 1 or tensor.HasField("contents"):
        raise Invalid("raw_input_contents has one element for each input, in place of contents.")
    return tensors.unpacked(raw[0], most)


def _outputs(inference: tensors.Inference, results: Sequence[Any], raw: bool) -> tensors.Fields:
    """Returns the fields of a response that hold the outputs."""
    outputs, contents = [], []
    for name in inference.outputs:
        elements = tensors.elements(name, results)
        output = {"name": name, "datatype": "BYTES", "shape": inference.shape}
        if raw:
            contents.append(tensors.packed(elements))
        else:
            output["contents"] = {"bytes_contents": elements}
        outputs.append(output)
    return {"outputs": outputs, "raw_output_contents": contents}

"""The door of the Open Inference Protocol, version 2, over gRPC.

Requests are taken as bytes and parsed here, so that one that cannot be parsed is answered with
INVALID_ARGUMENT, as every other request that is wrong.
"""

import asyncio
import contextvars

import grpc
from google.protobuf.message import DecodeError

from keras_transformer.export.serving import tensors
from keras_transformer.export.serving.bodies import aside
from keras_transformer.export.serving.http_v2 import EXTENSIONS, NAME, VERSION
from keras_transformer.export.serving.limits import FAILED, Invalid, Refusal, TooLarge, Unknown
from keras_transformer.export.serving.messages import MESSAGES, count_fields

SERVICE = "inference.GRPCInferenceService"
# Fields of a request beside its lines.
FIELDS = 100
_call = contextvars.ContextVar("call")


def make_server(models, address):
    """The server, bound and not started, and its port.

    Args:
        models: `Models`.
        address: str, `host:port`; port 0 is any free one.

    Raises:
        RuntimeError: the port is taken.
    """
    options = [
        ("grpc.max_receive_message_length", models.limits.body_bytes),
        ("grpc.so_reuseport", 0),  # two services at one port would share its requests
    ]
    server = grpc.aio.server(
        interceptors=[_Reading(models.limits)],
        options=options,
        maximum_concurrent_rpcs=2 * models.limits.open_requests,
    )
    door = _Door(models)
    methods = {
        name: grpc.unary_unary_rpc_method_handler(_method(models, name, getattr(door, name)))
        for name in (
            "ServerLive",
            "ServerReady",
            "ServerMetadata",
            "ModelReady",
            "ModelMetadata",
            "ModelInfer",
        )
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
    return server, server.add_insecure_port(address)


class _Reading(grpc.aio.ServerInterceptor):
    """Bounds the requests that are being read, and the time of reading and of writing.

    gRPC holds all of a request before its method begins. So no more are read at the same time than
    fit into `Limits.held_bytes`, each as large as it may be; others wait.
    """

    def __init__(self, limits):
        self._limits = limits
        self._free = asyncio.Semaphore(max(1, limits.held_bytes // limits.body_bytes))

    async def intercept_service(self, continuation, details):
        await self._free.acquire()
        _call.set(_Call(self._free, self._limits))
        return await continuation(details)


class _Call:
    """A request: its place among the ones that are being read, and its time limit.

    Args:
        free: asyncio.Semaphore, of these places.
        limits: `Limits`.
    """

    def __init__(self, free, limits):
        self._free, self._limits = free, limits
        self._task, self._timer = asyncio.current_task(), None
        self._reading = True
        self._end_after(limits.read_seconds)
        self._task.add_done_callback(self._end)

    def begin(self):
        """The request has been read."""
        self._timer.cancel()
        if self._reading:
            self._reading = False
            self._free.release()

    def write(self):
        """The answer is sent from now on."""
        self._end_after(self._limits.write_seconds)

    def _end_after(self, seconds):
        self._timer = asyncio.get_running_loop().call_later(seconds, self._task.cancel)

    def _end(self, task):
        self.begin()


def _method(models, name, answer):
    """A method from bytes to bytes."""

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

    async def method(data, context):
        call = _call.get()
        call.begin()
        try:
            with models.holding() as add:
                add(len(data))
                request = await aside(len(data), parse, data)
                response = await answer(request, context)
                found = await aside(len(data), written, response)
        except Refusal as refusal:
            code, reason = getattr(grpc.StatusCode, refusal.code), str(refusal)
        except Exception:  # of any kind: gRPC would send its text
            code, reason = grpc.StatusCode.INTERNAL, FAILED
        else:
            call.write()
            return found
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
        with self._models.request("v2-grpc") as record:
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

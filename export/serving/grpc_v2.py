"""The door of the Open Inference Protocol, version 2, over gRPC.

Requests are taken as bytes and parsed here, so that one that cannot be parsed is answered with
INVALID_ARGUMENT, as every other request that is wrong.
"""

import grpc
from google.protobuf.message import DecodeError

from keras_transformer.export.serving import tensors
from keras_transformer.export.serving.http_v2 import EXTENSIONS, NAME, VERSION
from keras_transformer.export.serving.messages import MESSAGES
from keras_transformer.export.serving.refusals import Invalid, Refusal, Unknown

SERVICE = "inference.GRPCInferenceService"


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
        options=options, maximum_concurrent_rpcs=2 * models.limits.open_requests
    )
    door = _Door(models)
    methods = {
        name: grpc.unary_unary_rpc_method_handler(_method(name, getattr(door, name)))
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


def _method(name, answer):
    """A method from bytes to bytes."""
    request_class, response_class = (MESSAGES[name + kind] for kind in ("Request", "Response"))

    async def method(data, context):
        try:
            try:
                request = request_class.FromString(data)
            except DecodeError as error:
                raise Invalid("The request cannot be parsed.") from error
            response = await answer(request, len(data), context)
        except Refusal as refusal:
            code = getattr(grpc.StatusCode, refusal.code)
            await context.abort(code, str(refusal))
        return response_class(**response).SerializeToString()

    return method


class _Door:
    """The methods of the protocol: each takes a request and gives the fields of a response."""

    def __init__(self, models):
        self._models = models

    async def ServerLive(self, request, size, context):
        return {"live": True}

    async def ServerReady(self, request, size, context):
        return {"ready": self._models.ready}

    async def ServerMetadata(self, request, size, context):
        return {"name": NAME, "version": VERSION, "extensions": EXTENSIONS}

    async def ModelReady(self, request, size, context):
        try:
            self._models.get(request.name, request.version)
        except Unknown:
            return {"ready": False}
        return {"ready": self._models.ready}

    async def ModelMetadata(self, request, size, context):
        return tensors.described(self._models.get(request.name, request.version))

    async def ModelInfer(self, request, size, context):
        with self._models.request("v2-grpc") as record, self._models.held() as add:
            add(size)
            return await self._infer(request, context, record)

    async def _infer(self, request, context, record):
        model = self._models.get(request.model_name, request.model_version)
        record.model = model.name
        items, shape = _items(request)
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
        raw, described = [], []
        for name in outputs:
            elements = tensors.elements(name, results)
            tensor = {"name": name, "datatype": "BYTES", "shape": shape}
            if request.raw_input_contents:
                raw.append(tensors.packed(elements))
            else:
                tensor["contents"] = {"bytes_contents": elements}
            described.append(tensor)
        return {**response, "outputs": described, "raw_output_contents": raw}


def _items(request):
    """The elements of the input, a list of bytes, and its shape."""
    names = [tensor.name for tensor in request.inputs]
    tensor = request.inputs[0] if len(names) == 1 else MESSAGES["InferTensor"]()
    shape = list(tensor.shape)
    size = tensors.check_input(names, tensor.datatype, shape)
    if any(entry.key == "shared_memory_region" for entry in tensor.parameters):
        raise Invalid("Shared memory is not read: send the data.")
    raw = request.raw_input_contents
    if not raw:
        return tensors.check_size(list(tensor.contents.bytes_contents), size), shape
    if len(raw) != 1 or tensor.HasField("contents"):
        raise Invalid("raw_input_contents has one element for each input, in place of contents.")
    return tensors.check_size(tensors.unpacked(raw[0]), size), shape


def _value(parameter):
    """The value of an `InferParameter`; None where it has none."""
    kind = parameter.WhichOneof("parameter_choice")
    return getattr(parameter, kind) if kind else None

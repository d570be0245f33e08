"""The path of a request, the same for every protocol: fields, queue, results, fields.

A protocol has a function that reads a request into a `Call`, and a function that writes the answer
from its results. `endpoint` makes a route of both: it counts the request, reads its body, calls
both functions on threads if the work is large, applies the deadline, and cancels the work if the
client leaves. `EventStream` sends a response in parts, each as soon as it is computed.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, NamedTuple

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from keras_transformer.export.serving.bodies import read_body, request_seconds, unless_gone
from keras_transformer.export.serving.limits import (
    RESULT_BYTES,
    free_on_thread_if_large,
    on_thread_if_large,
)
from keras_transformer.export.serving.models import Model, Models
from keras_transformer.export.serving.refusals import Refusal, error_body
from keras_transformer.export.serving.request_log import Record

END = "[DONE]"  # the last event of OpenAI's protocol


class Call(NamedTuple):
    """A checked request: all that is kept while it waits. Its JSON may be far larger.

    Attributes:
        model: `Model`.
        items: list of str or bytes, the lines to compute.
        options: dict, of the search.
        values: dict of what else the answer depends on.
        seconds: float, the deadline in the body. Defaults to `None`: the headers' deadline.
        in_parts: bool, whether the result is computed in parts, of one item.
        streams: bool, whether the parts are sent. Otherwise only the result is.
        client: str, who has the key in the body. Defaults to `None`: the headers have it.
    """

    model: Model
    items: Sequence[str | bytes]
    options: dict[str, Any]
    values: dict[str, Any]
    seconds: float | None = None
    in_parts: bool = False
    streams: bool = False
    client: str | None = None


# Reads a request and its body, on a thread; raises a `Refusal`.
Read = Callable[[Models, Request, bytes], Call]
# Writes the answer from the results and the number of tokens that the model read, on a thread.
Write = Callable[[Call, Sequence[Any], int], Response]
# Yields the events of a stream, from its first part and the others.
Events = Callable[[Call, Any, AsyncGenerator[Any]], AsyncGenerator[dict[str, Any]]]


class EventStream(StreamingResponse):
    """A response of server-sent events. The endpoint sends it while it watches the client.

    Args:
        events: async generator of objects that become JSON. It is closed if the client leaves.
    """

    def __init__(self, events: AsyncGenerator[Any]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(_lines(events), 200, headers, "text/event-stream")
        self._events = events

    async def stream_response(self, send: Send) -> None:
        """Sends the events."""
        async with contextlib.aclosing(self._events):
            await super().stream_response(send)


async def _lines(events: AsyncGenerator[Any]) -> AsyncGenerator[str]:
    async for event in events:
        yield f"data: {json.dumps(event)}\n\n"  # JSON writes no line ends
    yield f"data: {END}\n\n"


def page(models: Models, path: str, write: Callable[[Models, Request], Any]) -> Route:
    """Returns the route of a page: JSON that needs no computation.

    Args:
        models: `Models`.
        path: str, as Starlette takes it.
        write: function of `Models` and the request, which returns what becomes JSON.
    """

    async def answer(request: Request) -> Response:
        return JSONResponse(write(models, request))

    return Route(path, answer)


def endpoint(
    models: Models,
    path: str,
    protocol: str,
    read: Read,
    write: Write,
    events: Events | None = None,
    most: int | None = None,
) -> Route:
    """Returns the route of an endpoint, to which clients send requests with `POST`.

    Args:
        models: `Models`.
        path: str, as Starlette takes it.
        protocol: str, its name in metrics and log.
        read: function of `Models`, a request and its body, which returns a `Call`.
        write: function of the `Call`, its results, and the number of tokens that the model has
            read. It returns a response.
        events: function of the `Call`, the first part and the others, which yields the events of a
            stream. Defaults to `None`: no call streams.
        most: int, bytes of a body. Defaults to the limit `body_bytes`.
    """
    made = _Endpoint(models, protocol, read, write, events, most or models.limits.body_bytes)
    return Route(path, made, methods=["POST"])


class _Endpoint:
    """An ASGI application, with the arguments of `endpoint`."""

    def __init__(
        self,
        models: Models,
        protocol: str,
        read: Read,
        write: Write,
        events: Events | None,
        most: int,
    ) -> None:
        self._models, self._protocol, self._most = models, protocol, most
        self._read, self._write, self._events = read, write, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        models, request = self._models, Request(scope, receive)
        with models.request(self._protocol, request.state.client) as record:
            try:
                body = await read_body(request, record, models.limits, self._most)
                with models.admission.requests.hold(record.client):
                    leaving = asyncio.ensure_future(receive())
                    try:
                        response = await unless_gone(leaving, self._answer(request, body, record))
                        if isinstance(response, EventStream):  # computed while it is sent
                            await unless_gone(leaving, response.stream_response(send))
                            return
                    finally:
                        leaving.cancel()
            except ClientDisconnect:
                record.status = 499
                return
        await response(scope, receive, send)

    async def _answer(self, request: Request, body: bytes, record: Record) -> Response:
        models, size = self._models, len(body)
        if (name := request.path_params.get("model")) in models.names():
            record.model = name
        call = await on_thread_if_large(size, self._read, models, request, body)
        results: Sequence[Any] = []
        try:
            if call.client is not None:
                record.identify(call.client)
            record.model = call.model.name
            seconds = request_seconds(request.headers) if call.seconds is None else call.seconds
            if call.in_parts:
                record.buffer(sum(map(len, call.items)))  # a copy
                parts = models.stream(record, call.model, call.items, call.options, seconds)
                if call.streams:
                    first = await anext(parts)  # until here, a refusal sets the status
                    return EventStream(self._sent(request, call, record, first, parts))
                async with contextlib.aclosing(parts):
                    found = [part async for part in parts]
                size += RESULT_BYTES * len(found)
                results = found[-1:]
            elif call.items:
                results = await models.answer(record, call.model, call.items, call.options, seconds)
                size += RESULT_BYTES * len(results)
            return await on_thread_if_large(size, self._write, call, results, record.tokens)
        finally:
            held = [call, results]
            del call, results
            free_on_thread_if_large(size, held)

    async def _sent(
        self,
        request: Request,
        call: Call,
        record: Record,
        first: Any,
        parts: AsyncGenerator[Any],
    ) -> AsyncGenerator[dict[str, Any]]:
        """Yields the events of a stream. A refusal becomes its last event."""
        events = self._events(call, first, parts)
        async with contextlib.aclosing(parts), contextlib.aclosing(events):
            try:
                async for event in events:
                    yield event
            except Refusal as refusal:
                record.status = refusal.status
                yield error_body(request.scope["path"], refusal.status, str(refusal))

"""The protocol of plain lines: lines in, lines out, as the command line of the runtime.

    curl -T in.txt http://127.0.0.1:8080/lines/en-de > out.txt

Lines that have arrived are computed before more is read. So a file of any length takes little
memory, and a client that waits for each result gets it.
"""

import asyncio
import codecs
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from keras_transformer.export.runtime.lines import Format, format_result
from keras_transformer.export.serving.bodies import (
    check_encoding,
    joined,
    request_seconds,
    unless_gone,
)
from keras_transformer.export.serving.fields import Field, one_of, read_fields
from keras_transformer.export.serving.limits import (
    RESULT_BYTES,
    ROOM_SECONDS,
    WINDOW,
    on_thread_if_large,
)
from keras_transformer.export.serving.models import Model, Models
from keras_transformer.export.serving.refusals import Busy, Refusal, TooLarge, TooSlow
from keras_transformer.export.serving.request_log import Record

_FORMATS = {"text": Format(), "json": Format(json=True)}
FIELDS = (Field("format", one_of(_FORMATS), "text"),)


def routes(models: Models) -> list[Route]:
    """Returns the routes. `_Lines` counts its requests itself."""
    return [Route("/lines/{model}", _Lines(models), methods=["POST", "PUT"])]


class _Lines:
    """An ASGI application that reads and writes at the same time, which a handler cannot."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        models = self._models
        client = Request(scope).state.client
        with models.request("lines", client) as record, models.admission.streams.hold(client):
            stream = _Stream(receive, send, models, record)
            try:
                await self._compute(Request(scope), stream, record)
            except Refusal as refusal:
                if not stream.started:
                    raise
                record.status = refusal.status  # the response is cut off, which a client sees
            except ClientDisconnect:
                record.status = 499
            finally:
                await stream.end()

    async def _compute(self, request: Request, stream: "_Stream", record: Record) -> None:
        model = self._models.get(request.path_params["model"])
        record.model = model.name
        check_encoding(request.headers)
        query = request.query_params
        form, options = await on_thread_if_large(len(request.url.query), _options, query, model)
        seconds, number = request_seconds(request.headers), 0
        async for lines in stream.lines():
            if not number:
                lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
            for start in range(0, len(lines), WINDOW):
                window = lines[start : start + WINDOW]
                results = await self._results(stream, record, model, window, options, seconds)
                size = RESULT_BYTES * len(window)
                await stream.write(
                    await on_thread_if_large(size, _formatted, results, number + 1, form)
                )
                number += len(window)
        await stream.write(b"", more=False)

    async def _results(self, stream: "_Stream", record: Record, *request: Any) -> list[Any]:
        """Returns the results of a window. A stream that has begun waits for room in the queue."""
        while True:
            try:
                computing = self._models.answer(record, *request)
                return await unless_gone(stream.reading, computing)
            except Busy:
                if not stream.started:
                    raise
                await unless_gone(stream.reading, asyncio.sleep(ROOM_SECONDS))


def _formatted(results: list[Any], number: int, form: Format) -> bytes:
    """Returns results as lines; `number` is the number of the first line."""
    return b"".join(format_result(n, result, form) for n, result in enumerate(results, number))


def _options(query: QueryParams, model: Model) -> tuple[Format, dict[str, Any]]:
    """Returns the format of the response, and the options of the search."""
    given = joined(query.multi_items())
    values = read_fields(given, FIELDS, written=True, has_options=True)
    return _FORMATS[values["format"]], model.checked_options(given, table=FIELDS)


class _Stream:
    """The lines of a request, and its response.

    Args:
        receive, send: of ASGI.
        models: `Models`. Its limits bound one line, and the time until the next one has arrived.
        record: of the request.

    Attributes:
        reading: task that ends when the client leaves.
        started: bool, whether the response has begun.
    """

    def __init__(self, receive: Receive, send: Send, models: Models, record: Record) -> None:
        self._receive, self._send, self._record = receive, send, record
        self._admission, self._limits = models.admission, models.limits
        self.started = False
        self._parts: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue(1)
        self.reading = asyncio.create_task(self._read())

    async def lines(self) -> AsyncIterator[list[bytes]]:
        """Yields lists of the lines that have arrived, without their ends."""
        rest, more, limits = bytearray(), True, self._limits
        while more:
            lines: list[bytes] = []
            try:
                async with asyncio.timeout(limits.read_seconds):
                    while more and not lines:
                        part, more = await unless_gone(self.reading, self._parts.get())
                        rest += part
                        if b"\n" in part:
                            *lines, last = bytes(rest).split(b"\n")
                            rest = bytearray(last)
                        if len(rest) > limits.body_bytes:
                            await self._discard(more)
                            raise TooLarge(f"A line may have {limits.body_bytes} bytes.")
            except TimeoutError as error:
                raise TooSlow(f"No whole line came for {limits.read_seconds:g} seconds.") from error
            if lines:
                yield lines
                self._record.free(sum(len(line) + 1 for line in lines))
        if rest:
            yield [bytes(rest)]

    async def write(self, data: bytes, more: bool = True) -> None:
        """Sends a part of the response."""
        if not self.started:
            self.started = True
            headers = [(b"content-type", b"text/plain; charset=utf-8")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def end(self) -> None:
        """Stops reading."""
        self.reading.cancel()
        await asyncio.gather(self.reading, return_exceptions=True)

    async def _read(self) -> None:
        """Reads one part ahead, and so notices when the client leaves.

        Only the first part is refused if there is no room. Later parts wait, as long as `lines`
        does.
        """
        first = True
        while (message := await self._receive())["type"] != "http.disconnect":
            part = message.get("body", b"")
            if not first:
                await self._admission.wait_for_room(self._record.client, len(part))
            self._record.buffer(len(part))
            first = False
            await self._parts.put((part, message.get("more_body", False)))

    async def _discard(self, more: bool) -> None:
        """Drops the rest: most clients read no response before they have sent all."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.read_seconds):
                while more:
                    part, more = await unless_gone(self.reading, self._parts.get())
                    self._record.free(len(part))

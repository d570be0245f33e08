"""The plain door: lines in, lines out, as the command line of the runtime, and as a stream.

    curl -T in.txt http://127.0.0.1:8080/lines/en-de > out.txt

What has arrived is answered before more is read, so that a file of any length takes little memory,
and a client that waits for each answer gets it.
"""

import asyncio
import contextlib

from starlette.requests import Request
from starlette.routing import Route

from keras_transformer.export.runtime.lines import Format, written
from keras_transformer.export.serving.bodies import check_encoding, request_seconds
from keras_transformer.export.serving.limits import Invalid, Refusal, TooLarge, TooSlow

# Lines that are answered before more is read.
WINDOW = 512
_FORMATS = {"text": Format(), "json": Format(json=True)}


def routes(models, door):
    """The routes. A stream is counted here, not by `door`."""
    return [Route("/lines/{model}", _Lines(models), methods=["POST", "PUT"])]


class _Lines:
    """An ASGI application: it reads and writes at the same time, which a handler cannot."""

    def __init__(self, models):
        self._models = models

    async def __call__(self, scope, receive, send):
        request, models = Request(scope), self._models
        with (
            models.request("lines") as record,
            models.answering(stream=True),
            models.holding() as add,
        ):
            stream = _Stream(receive, send, models, add)
            try:
                await self._answer(request, stream, record)
            except Refusal as refusal:
                if not stream.started:
                    raise
                record.status = refusal.status  # the answer is cut off, which a client sees
            except ConnectionError:
                record.status = 499
            finally:
                await stream.end()

    async def _answer(self, request, stream, record):
        model = self._models.get(request.path_params["model"])
        record.model = model.name
        check_encoding(request.headers)
        form, seed = _options(request.query_params, model)
        seconds, number = request_seconds(request.headers), 0
        async for lines in stream.lines():
            for start in range(0, len(lines), WINDOW):
                some = lines[start : start + WINDOW]
                answer = self._models.answer(record, model, some, seed, seconds)
                results = await stream.unless_gone(answer)
                rows = (written(n, result, form) for n, result in enumerate(results, number + 1))
                await stream.write(b"".join(rows))
                number += len(some)
        await stream.close()


def _options(query, model):
    unknown = sorted(set(query) - {"format", "seed"})
    form, seed = query.get("format", "text"), query.get("seed")
    if unknown or form not in _FORMATS:
        raise Invalid(f"Options are format, one of {', '.join(_FORMATS)}, and seed.")
    if seed is not None and not (seed.isascii() and seed.isdigit() and len(seed) < 12):
        raise Invalid("seed is an integer.")
    return _FORMATS[form], model.seed(None if seed is None else int(seed))


class _Stream:
    """A request's lines and its answer.

    Args:
        receive, send: of ASGI.
        models: `Models`. Its limits bound one line, and the time until the next one has arrived.
        add: from `Models.holding`.
    """

    def __init__(self, receive, send, models, add):
        self._receive, self._send, self._models, self._add = receive, send, models, add
        self._limits = models.limits
        self.started = False
        self._parts = asyncio.Queue(1)
        self._reading = asyncio.create_task(self._read())

    async def lines(self):
        """Yields the lines that have arrived, lists of bytes, without their ends."""
        rest, more, limits = bytearray(), True, self._limits
        while more:
            lines = []
            try:
                async with asyncio.timeout(limits.read_seconds):
                    while more and not lines:
                        part, more = await self.unless_gone(self._parts.get())
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
                self._add(-sum(len(line) + 1 for line in lines))
        if rest:
            yield [bytes(rest)]

    async def unless_gone(self, answer):
        """Awaits a coroutine; raises `ConnectionResetError` if the client leaves first."""
        answering = asyncio.ensure_future(answer)
        try:
            await asyncio.wait((answering, self._reading), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                self._reading.result()
            return await answering
        finally:
            answering.cancel()

    async def write(self, data):
        await self._start()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def close(self):
        await self._start()
        await self._send({"type": "http.response.body", "body": b""})

    async def end(self):
        """Stops reading."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self):
        """Reads ahead by a part, so that it is noticed when the client leaves.

        Only the first part is refused where there is no room. Later ones wait: `lines` has a limit.
        """
        first = True
        while (message := await self._receive())["type"] != "http.disconnect":
            part = message.get("body", b"")
            if not first:
                await self._models.wait_for_room(len(part))
            self._add(len(part))
            first = False
            await self._parts.put((part, message.get("more_body", False)))
        raise ConnectionResetError

    async def _discard(self, more):
        """Reads the rest: most clients read no answer before they have sent all."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.read_seconds):
                while more:
                    part, more = await self.unless_gone(self._parts.get())
                    self._add(-len(part))

    async def _start(self):
        if not self.started:
            self.started = True
            headers = [(b"content-type", b"text/plain; charset=utf-8")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})

"""The plain door: lines in, lines out, as the command line of the runtime, and as a stream.

    curl -T in.txt http://127.0.0.1:8080/lines/en-de > out.txt

What has arrived is answered before more is read, so that a file of any length takes little memory,
and a client that waits for each answer gets it.
"""

import asyncio
import contextlib

from starlette.requests import Request
from starlette.routing import Route

from keras_transformer.export.runtime.written import Format, written
from keras_transformer.export.serving.bodies import check_encoding, request_seconds
from keras_transformer.export.serving.refusals import Invalid, Refusal, TooLarge, TooSlow

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
        request = Request(scope)
        with self._models.request("lines") as record:
            stream = _Stream(receive, send, self._models.limits)
            try:
                await self._answer(request, stream, record)
            except Refusal as refusal:
                if not stream.started:
                    raise
                record.status = refusal.status  # the answer is cut off, which a client sees
            except ConnectionError:
                record.status = 499

    async def _answer(self, request, stream, record):
        model = self._models.get(request.path_params["model"])
        record.model = model.name
        check_encoding(request.headers)
        form, seed = _options(request.query_params, model)
        seconds, number = request_seconds(request.headers), 0
        async for lines in stream.lines():
            for start in range(0, len(lines), WINDOW):
                some = lines[start : start + WINDOW]
                results = await self._models.answer(record, model, some, seed, seconds)
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
        limits: `Limits`: of one line, and of the time that the next part of the request may take,
            or the client to take the next part of the answer.
    """

    def __init__(self, receive, send, limits):
        self._receive, self._send, self._limits = receive, send, limits
        self.started = False

    async def lines(self):
        """Yields the lines that have arrived, lists of bytes, without their ends."""
        rest, more = b"", True
        while more:
            message = await self._within(self._receive(), "The request stopped")
            if message["type"] == "http.disconnect":
                raise ConnectionResetError
            more = message.get("more_body", False)
            *lines, rest = (rest + message.get("body", b"")).split(b"\n")
            if len(rest) > self._limits.body_bytes:
                await self._discard(more)
                raise TooLarge(f"A line may have {self._limits.body_bytes} bytes.")
            if lines:
                yield lines
        if rest:
            yield [rest]

    async def _discard(self, more):
        """Reads the rest: most clients read no answer before they have sent all."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.read_seconds):
                while more:
                    more = (await self._receive()).get("more_body", False)

    async def write(self, data):
        await self._start()
        message = {"type": "http.response.body", "body": data, "more_body": True}
        await self._within(self._send(message), "The answer was not taken")

    async def close(self):
        await self._start()
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self):
        if not self.started:
            self.started = True
            headers = [(b"content-type", b"text/plain; charset=utf-8")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _within(self, done, what):
        seconds = self._limits.read_seconds
        try:
            async with asyncio.timeout(seconds):
                return await done
        except TimeoutError as error:
            raise TooSlow(f"{what} for {seconds:g} seconds.") from error

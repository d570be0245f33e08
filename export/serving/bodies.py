"""Bodies of HTTP requests: read within limits of size and time, and parsed."""

import asyncio
import contextlib
import gc
import json
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from keras_transformer.export.artefact.messages import shorten
from keras_transformer.export.serving.limits import Limits
from keras_transformer.export.serving.refusals import (
    Invalid,
    Refusal,
    TooLarge,
    TooSlow,
    WrongType,
)
from keras_transformer.export.serving.request_log import Record

T = TypeVar("T")


async def unless_gone(leaving: asyncio.Future[Any], work: Coroutine[Any, Any, T]) -> T:
    """Awaits a coroutine, and cancels it if the client leaves first.

    Args:
        leaving: future that is done when the client has left. Its exception is raised.
        work: coroutine.

    Returns:
        The result of the coroutine.

    Raises:
        ClientDisconnect: the client has left.
    """
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            leaving.result()
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()


async def read_body(request: Request, record: Record, limits: Limits) -> bytes:
    """Reads the body of a request.

    A body that is too large is read to its end and dropped, within the same time: most clients read
    no response before they have sent all.

    Raises:
        TooLarge: the body exceeds `body_bytes`.
        TooSlow: it does not arrive in time.
        Busy: the bodies of all requests exceed `buffered_bytes`.
        WrongType: it is compressed.
    """
    check_encoding(request.headers)
    parts: list[bytes] = []
    refusal: Refusal | None = None
    seconds = limits.read_seconds
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                if refusal is not None:
                    continue
                try:
                    if record.buffered + len(part) > limits.body_bytes:
                        raise TooLarge(f"A request may have {limits.body_bytes} bytes.")
                    record.buffer(len(part))
                    parts.append(part)
                except Refusal as error:
                    refusal = error
                    parts.clear()
                    record.free(record.buffered)
    except TimeoutError as error:
        raise refusal or TooSlow(f"The request did not arrive in {seconds:g} seconds.") from error
    if refusal is not None:
        raise refusal
    return b"".join(parts)


def check_encoding(headers: Headers) -> None:
    """Raises `WrongType` for a compressed body."""
    for name, plain in (("content-encoding", "identity"), ("transfer-encoding", "chunked")):
        for encoding in headers.getlist(name):
            if encoding.lower() != plain:
                raise WrongType(f"The body has the {name} {shorten(encoding)}. Send it as it is.")


def read_json(data: bytes) -> dict[str, Any]:
    """Parses a body that must be a JSON object.

    Raises:
        Invalid: it is not.
    """
    try:
        with _no_collection():
            found = json.loads(data)
    except (ValueError, RecursionError) as error:
        kind = type(error).__name__  # its text may hold the request's
        raise Invalid(f"The body is not JSON ({kind}).") from error
    if not isinstance(found, dict):
        raise Invalid("The body is JSON, but no object.")
    return found


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Stops garbage collection, which takes seconds while millions of lists are made."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def request_seconds(headers: Headers) -> float | None:
    """Returns the deadline that a client sets by the header `Request-Timeout`."""
    value = headers.get("request-timeout")
    if value is None:
        return None
    with contextlib.suppress(ValueError):
        if (seconds := float(value)) >= 0:
            return seconds
    raise Invalid("The header Request-Timeout is a number of seconds.")

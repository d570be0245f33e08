"""Bodies of HTTP requests: read within limits of size and time, and taken apart."""

import asyncio
import contextlib
import gc
import json

from starlette.requests import ClientDisconnect

from keras_transformer.export.serving.limits import (
    Invalid,
    Refusal,
    TooLarge,
    TooSlow,
    WrongType,
    shown,
)

# Requests of at least this many bytes are processed on a thread.
LARGE = 2**16


async def aside(size, function, *arguments):
    """Calls a function, on a thread if the work is large, so that the event loop goes on.

    Args:
        size: int, bytes that the function reads or writes.
        function: function of the arguments.

    Returns:
        The result of the function.
    """
    if size < LARGE:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


async def unless_gone(receive, answer):
    """Awaits a coroutine, and cancels it if the client leaves first.

    Args:
        receive: of ASGI, after the last part of the body.
        answer: coroutine.

    Returns:
        The result of the coroutine.

    Raises:
        ClientDisconnect: the client has left.
    """
    answering, leaving = asyncio.ensure_future(answer), asyncio.ensure_future(receive())
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ClientDisconnect
        return answering.result()
    finally:
        answering.cancel()
        leaving.cancel()


async def read_body(request, add, limits):
    """The body of a Starlette request, bytes.

    A body that is too large is read to its end and thrown away, in the same time: most clients
    read no answer before they have sent all.

    Args:
        request: starlette.requests.Request.
        add: from `Models.holding`.
        limits: `Limits`.

    Raises:
        TooLarge: the body exceeds `body_bytes`.
        TooSlow: it does not arrive in time.
        Busy: the bodies of all requests exceed `held_bytes`.
        WrongType: it is compressed.
    """
    check_encoding(request.headers)
    parts, size, refusal, seconds = [], 0, None, limits.read_seconds
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                if refusal is None:
                    size += len(part)
                    try:
                        if size > limits.body_bytes:
                            raise TooLarge(f"A request may have {limits.body_bytes} bytes.")
                        add(len(part))
                        parts.append(part)
                    except Refusal as error:
                        refusal = error
                        add(-sum(map(len, parts)))
                        parts.clear()
    except TimeoutError as error:
        raise refusal or TooSlow(f"The request did not arrive in {seconds:g} seconds.") from error
    if refusal is not None:
        raise refusal
    return b"".join(parts)


def check_encoding(headers):
    """Raises `WrongType` for a compressed body."""
    for name, plain in (("content-encoding", "identity"), ("transfer-encoding", "chunked")):
        for encoding in headers.getlist(name):
            if encoding.lower() != plain:
                raise WrongType(f"The body has the {name} {shown(encoding)}. Send it as it is.")


def read_json(data):
    """The JSON object in a body, a dict.

    Raises:
        Invalid: the body is not a JSON object.
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
def _no_collection():
    """Stops garbage collection, which takes seconds while millions of lists are made."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def request_seconds(headers):
    """The deadline that a client sets by the header `Request-Timeout`, in seconds; or None."""
    value = headers.get("request-timeout")
    if value is None:
        return None
    with contextlib.suppress(ValueError):
        if (seconds := float(value)) >= 0:
            return seconds
    raise Invalid("The header Request-Timeout is a number of seconds.")

"""Bodies of HTTP requests: read within limits of size and time, and taken apart."""

import asyncio
import contextlib
import json

from keras_transformer.export.serving.refusals import (
    Invalid,
    Refusal,
    TooSlow,
    WrongType,
)


async def read_body(request, add, seconds):
    """The body of a Starlette request, bytes.

    A body that is too large is read to its end and thrown away, in the same time: most clients
    read no answer before they have sent all.

    Args:
        request: starlette.requests.Request.
        add: from `Models.held`.
        seconds: float, in which all of it must arrive.

    Raises:
        TooLarge, TooSlow, Busy, WrongType: it is, or its encoding.
    """
    check_encoding(request.headers)
    parts, refusal = [], None
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                if refusal is None:
                    try:
                        add(len(part))
                        parts.append(part)
                    except Refusal as error:
                        refusal = error
                        parts.clear()
    except TimeoutError as error:
        raise refusal or TooSlow(f"The request did not arrive in {seconds:g} seconds.") from error
    if refusal is not None:
        raise refusal
    return b"".join(parts)


def check_encoding(headers):
    """Raises `WrongType` for a compressed body."""
    encoding = headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise WrongType(f"The body is encoded as {encoding!r}. Send it as it is.")


def read_json(data):
    """The JSON object in a body, a dict.

    Raises:
        Invalid: it is none.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        kind = type(error).__name__  # its text may hold the request's
        raise Invalid(f"The body is not JSON ({kind}).") from error
    if not isinstance(found, dict):
        raise Invalid("The body is JSON, but no object.")
    return found


def request_seconds(headers):
    """The deadline that a client sets by the header `Request-Timeout`, in seconds; or None."""
    value = headers.get("request-timeout")
    if value is None:
        return None
    with contextlib.suppress(ValueError):
        if (seconds := float(value)) >= 0:
            return seconds
    raise Invalid("The header Request-Timeout is a number of seconds.")

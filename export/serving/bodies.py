"""Bodies of HTTP requests: read within limits of size and time, and parsed."""

import asyncio
import collections
import contextlib
import gc
import itertools
import json
import math
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from keras_transformer.export.artefact.messages import shorten
from keras_transformer.export.serving.limits import FORM_FIELDS, Limits
from keras_transformer.export.serving.refusals import (
    Invalid,
    Refusal,
    TooLarge,
    TooSlow,
    WrongType,
)
from keras_transformer.export.serving.request_log import Record

T = TypeVar("T")
MULTIPART = "multipart/form-data"


async def unless_gone(leaving: asyncio.Future[Any], work: Coroutine[Any, Any, T]) -> T:
    """Awaits a coroutine. Cancels it if the client leaves first, and waits until it has ended.

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
        await asyncio.wait((working,))  # else the request ends before its worker stops


async def read_body(request: Request, record: Record, limits: Limits, most: int) -> bytes:
    """Reads the body of a request of at most `most` bytes.

    A body that is too large is read to its end and dropped, within the same time: most clients read
    no response before they have sent all.

    Raises:
        TooLarge: the body exceeds `most`.
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
                    if record.buffered + len(part) > most:
                        raise TooLarge(f"A request may have {most} bytes.")
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
        kind = type(error).__name__  # its text may contain the request
        raise Invalid(f"The body is not JSON ({kind}).") from error
    if not isinstance(found, dict):
        raise Invalid("The body is JSON, but not an object.")
    return found


def read_form(content_type: str, data: bytes) -> tuple[dict[str, list[str]], dict[str, bytes]]:
    """Parses a form of `multipart/form-data`.

    Returns:
        Two dicts: from the names of fields to their texts, and from the names of files to their
        bytes.

    Raises:
        WrongType: the body has another type.
        Invalid: the form is malformed.
    """
    from python_multipart import create_form_parser  # only requests with files need it

    kind = content_type.partition(";")[0].strip().lower()
    if kind != MULTIPART:
        raise WrongType(f"The content is {MULTIPART}, not {shorten(kind)}.")
    fields: dict[str, list[str]] = collections.defaultdict(list)
    files: dict[str, bytes] = {}

    parts = itertools.count(1)

    def count() -> None:
        if next(parts) > FORM_FIELDS:
            raise Invalid(f"A form may have {FORM_FIELDS} fields.")

    def on_field(field: Any) -> None:
        count()
        fields[field.field_name.decode()].append((field.value or b"").decode())

    def on_file(file: Any) -> None:
        count()
        if (name := file.field_name.decode()) in files:
            raise Invalid(f"The form has several files {shorten(name)}. Send one.")
        files[name] = file.file_object.getvalue()

    options = {"MAX_MEMORY_FILE_SIZE": math.inf}  # no temporary files
    try:
        parser = create_form_parser({"Content-Type": content_type}, on_field, on_file, options)
        parser.write(data)
        parser.finalize()
    except ValueError as error:
        raise Invalid(f"The form cannot be read ({type(error).__name__}).") from error
    return dict(fields), files


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Stops garbage collection, which takes seconds for millions of new lists."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def request_seconds(headers: Headers) -> float | None:
    """Returns the deadline that a client sets in the header `Request-Timeout`."""
    value = headers.get("request-timeout")
    if value is None:
        return None
    with contextlib.suppress(ValueError):
        if (seconds := float(value)) >= 0:
            return seconds
    raise Invalid("The header Request-Timeout is a number of seconds.")

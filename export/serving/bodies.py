"""Bodies of HTTP requests: read within limits of size and time, and parsed."""

import asyncio
import collections
import contextlib
import gc
import json
import math
import urllib.parse
from collections.abc import Coroutine, Iterable, Iterator, Sequence
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
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
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


def read_content(
    content_type: str, data: bytes, kinds: Sequence[str]
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Parses a body by its type: JSON or a form.

    Args:
        content_type: str, the header.
        data: bytes.
        kinds: the types that the protocol reads, of `JSON`, `FORM` and `MULTIPART`.

    Returns:
        Two dicts: from the names of fields to their values, which are texts in a form, and from the
        names of files to their bytes. A field that a form repeats is a list.

    Raises:
        WrongType: the body has another type.
        Invalid: it is malformed.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in kinds:
        raise WrongType(f"The content is {' or '.join(kinds)}, not {shorten(kind)}.")
    if kind == JSON:
        return read_json(data), {}
    files: dict[str, bytes] = {}
    try:
        if kind == FORM:
            text, most = data.decode("ascii"), FORM_FIELDS
            pairs = urllib.parse.parse_qsl(
                text, keep_blank_values=True, errors="strict", max_num_fields=most
            )
        else:
            pairs = _read_multipart(content_type, data, files)
    except ValueError as error:
        raise Invalid(f"The form cannot be read ({type(error).__name__}).") from error
    return joined(pairs), files


def joined(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Returns the fields of a form or an address. One that is repeated is a list."""
    fields: dict[str, list[str]] = collections.defaultdict(list)
    for name, value in pairs:
        fields[name].append(value)
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}


def _read_multipart(
    content_type: str, data: bytes, files: dict[str, bytes]
) -> list[tuple[str, str]]:
    """Returns the fields of a form, and adds its files to `files`."""
    from python_multipart import create_form_parser  # only requests with files need it

    pairs: list[tuple[str, str]] = []

    def on_field(field: Any) -> None:
        count()
        pairs.append((field.field_name.decode(), (field.value or b"").decode()))

    def on_file(file: Any) -> None:
        count()
        if (name := file.field_name.decode()) in files:
            raise Invalid(f"The form has several files {shorten(name)}. Send one.")
        files[name] = file.file_object.getvalue()

    def count() -> None:
        if len(pairs) + len(files) >= FORM_FIELDS:
            raise Invalid(f"A form may have {FORM_FIELDS} fields.")

    options = {"MAX_MEMORY_FILE_SIZE": math.inf}  # no temporary files
    parser = create_form_parser({"Content-Type": content_type}, on_field, on_file, options)
    parser.write(data)
    parser.finalize()
    return pairs


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

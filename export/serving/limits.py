"""The limits of the service: sizes, times and counts."""

import asyncio
import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from keras_transformer.export.serving.refusals import Refusal

T = TypeVar("T")
P = ParamSpec("P")

THREAD_BYTES = 2**10  # of a request or an answer: from this size on, threads read and write it
LARGE_BYTES = 2**16  # for these there are separate threads, so that others do not wait for them
RESULT_BYTES = 2**10  # of the result of a line, about
STOP_CHARACTERS = 1000  # of a text that ends a completion
TAKEN = 64 * 2**10  # bytes of a response that a client must take in `write_seconds`
WINDOW = 512  # lines of a stream that are computed before more is read
ROOM_SECONDS = 0.1  # between two attempts of a stream that waits for room in the queue
NEW_TOKENS = 8192  # of a text, by the options of a request
# Of the terms of a line: a search keeps a state for each token of each term, in each hypothesis,
# and compares all terms with each other.
TERMS = 100
PLACED_TERMS = 20  # of a glossary in a line: each costs one or two searches
PADDED_CHARACTERS = 2**13  # each term as long as the longest
TAGS = 50_000  # of the texts of a request in HTML
FORM_FIELDS = 1000  # fields of a form, files included
# Largest values of `Limits`.
MAX_LIMIT, MAX_BUFFERED = 2**31 - 1, 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Limits:
    """The largest sizes, times and counts that the service accepts.

    A limit of a client is less by half of what the other clients hold, see `clients.Shares`.

    Attributes:
        body_bytes: int, of a request, and of a line of a stream.
        sound_bytes: int, of a request with a sound file.
        sound_seconds: float, length of the sound.
        buffered_bytes: int, of the requests and streams of a client that are being read or
            computed.
        header_bytes: int, of an HTTP request without its body.
        header_seconds: float, in which the headers of an HTTP request must arrive.
        lines: int, of a request; a stream may have more.
        open_requests: int, complete requests of a client that are being computed.
        open_streams: int, of a client to `/lines`, beside the requests.
        waiting_lines: int, of a client and a model, before requests are refused.
        read_seconds: float, in which a request, or the next line of a stream, must arrive.
        write_seconds: float, in which a client must take the next 64 KiB of a response.
        deadline_seconds: float, for requests without a deadline, and for one batch.

    Raises:
        ValueError: one of them is not positive, or too large.
    """

    body_bytes: int = 8 * 2**20
    sound_bytes: int = 25 * 2**20  # OpenAI's limit
    sound_seconds: float = 3600.0
    buffered_bytes: int = 256 * 2**20
    header_bytes: int = 64 * 2**10
    header_seconds: float = 10.0
    lines: int = 10_000
    open_requests: int = 1024
    open_streams: int = 1024
    waiting_lines: int = 512
    read_seconds: float = 20.0
    write_seconds: float = 20.0
    deadline_seconds: float = 300.0

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            most = MAX_BUFFERED if name == "buffered_bytes" else MAX_LIMIT
            if not 0 < value <= most:  # NaN fails, too
                raise ValueError(f"`{name}` must be above 0 and at most {most}, got {value}.")


_LARGE = concurrent.futures.ThreadPoolExecutor(2, "large")


async def on_thread_if_large(
    size: int, function: Callable[P, T], *arguments: P.args, **named: P.kwargs
) -> T:
    """Calls a function, on a thread if the work is large, so that the event loop is free.

    Args:
        size: int, bytes that the function reads or writes.
        function, arguments, named: the call.

    Returns:
        The result of the function.
    """
    if size < THREAD_BYTES:
        return function(*arguments, **named)
    call = functools.partial(_outcome, function, *arguments, **named)
    threads = _LARGE if size >= LARGE_BYTES else None
    found = await asyncio.get_running_loop().run_in_executor(threads, call)
    if isinstance(found, Refusal):
        raise found
    return found


def free_on_thread_if_large(size: int, held: list[Any]) -> None:
    """Empties a list, on a thread if that is much work: 10,000 texts take 30 ms.

    Args:
        size: int, bytes that were read into what the list holds.
        held: list with the only references to its elements.
    """
    if size < THREAD_BYTES:
        held.clear()
    else:
        asyncio.get_running_loop().run_in_executor(None, held.clear)


def _outcome(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | Refusal:
    """Returns the result of a call, or its refusal.

    A refusal that is raised keeps the frames of the thread, and so does the error that caused it.
    The event loop would free all that was parsed.
    """
    try:
        return function(*arguments, **named)
    except Refusal as refusal:
        refusal.__cause__ = refusal.__context__ = None
        return refusal.with_traceback(None)

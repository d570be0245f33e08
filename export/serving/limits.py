"""All limits of the service: sizes, times and counts, refusals, and what counts open requests.

A refusal is one class for each reason, with a status in HTTP and a code in gRPC. gRPC's codes are
given by name: only its protocol needs the package.
"""

import asyncio
import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import ParamSpec, Protocol, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

FAILED = "The service has failed at this request; its log says why."
REASON = 500  # characters; gRPC sends a reason as metadata, of which clients take 8 KiB
LARGE = 2**16  # bytes of a request from which on it is parsed on a thread
TAKEN = 64 * 2**10  # bytes of a response that a client must take in `write_seconds`
WINDOW = 512  # lines of a stream that are computed before more is read
GRPC_FIELDS = 100  # fields of a gRPC request beside its lines
FORM_FIELDS = 1000  # fields of a form
# Largest values of `Limits`. gRPC takes numbers of 32 bits.
MOST, MOST_BUFFERED = 2**31 - 1, 2**63 - 1


class Output(Protocol):
    """A file for text."""

    def write(self, text: str, /) -> object:
        """Writes text."""

    def flush(self) -> object:
        """Hands written text to the system."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """Sizes and times that the service accepts.

    Attributes:
        body_bytes: int, of a request, and of a line of a stream.
        buffered_bytes: int, of all requests and streams that are being read or computed.
        head_bytes: int, of everything in an HTTP request that is no body.
        head_seconds: float, in which the head of an HTTP request must arrive.
        lines: int, of a request; a stream may have more.
        open_requests: int, complete requests that are being computed.
        open_streams: int, of `/lines`, beside the requests.
        waiting_lines: int, of a model, before requests are refused.
        read_seconds: float, in which a request, or the next line of a stream, must arrive.
        write_seconds: float, in which a client must take the next 64 KiB of a response.
        deadline_seconds: float, for requests that bring none, and for one batch.

    Raises:
        ValueError: one of them is not positive, or too large.
    """

    body_bytes: int = 8 * 2**20
    buffered_bytes: int = 256 * 2**20
    head_bytes: int = 64 * 2**10
    head_seconds: float = 10.0
    lines: int = 10_000
    open_requests: int = 1024
    open_streams: int = 1024
    waiting_lines: int = 512
    read_seconds: float = 20.0
    write_seconds: float = 20.0
    deadline_seconds: float = 300.0

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            most = MOST_BUFFERED if name == "buffered_bytes" else MOST
            if not 0 < value <= most:  # NaN is not, either
                raise ValueError(f"`{name}` must be above 0 and at most {most}, got {value}.")


class Refusal(Exception):
    """A request that is not answered. The client gets `str`, cut to `REASON` characters."""

    status, code = 500, "INTERNAL"
    headers: dict[str, str] = {}

    def __init__(self, reason: str) -> None:
        super().__init__(reason[:REASON])


class Invalid(Refusal):
    """The request is not what the protocol or the model takes: sent again, it fails again."""

    status, code = 400, "INVALID_ARGUMENT"


class Forbidden(Refusal):
    """A browser sends the request for a page of another origin."""

    status, code = 403, "PERMISSION_DENIED"


class Unknown(Refusal):
    """There is no such model, version or address."""

    status, code = 404, "NOT_FOUND"


class TooSlow(Refusal):
    """The request did not arrive in time."""

    status, code = 408, "DEADLINE_EXCEEDED"
    headers = {"Connection": "close"}


class TooLarge(Refusal):
    """The request is larger than what the service reads."""

    status, code = 413, "OUT_OF_RANGE"


class WrongType(Refusal):
    """The content's type or encoding is one that the protocol does not read."""

    status, code = 415, "INVALID_ARGUMENT"


class HeadTooLarge(Refusal):
    """The head of the HTTP request is larger than what the service reads."""

    status, code = 431, "OUT_OF_RANGE"


class Busy(Refusal):
    """The service has no room. A client may repeat the request after a while."""

    status, code = 429, "RESOURCE_EXHAUSTED"
    headers = {"Retry-After": "1"}


class Unavailable(Refusal):
    """The service is shutting down, or no replica answers. A client may repeat the request."""

    status, code = 503, "UNAVAILABLE"
    headers = {"Retry-After": "1"}


class WorkerLost(Unavailable):
    """The process of a worker has died at a batch."""


class Late(Refusal):
    """The deadline of the request is over."""

    status, code = 504, "DEADLINE_EXCEEDED"


class Admission:
    """Counts the open requests of a service, and refuses what exceeds its limits.

    Args:
        limits: `Limits`.

    Attributes:
        open: int, requests that are being read or computed.
        buffered: int, their bytes.
        draining: bool. True: new requests are refused.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.open = self.buffered = 0
        self.draining = False
        self._computing: collections.Counter[bool] = collections.Counter()
        self._none_open, self._freed = asyncio.Event(), asyncio.Event()
        self._none_open.set()

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Counts an open request; raises `Unavailable` if the service is shutting down."""
        self.open += 1
        self._none_open.clear()
        try:
            if self.draining:
                raise Unavailable("The service is shutting down. Repeat the request elsewhere.")
            yield
        finally:
            self.open -= 1
            if not self.open:
                self._none_open.set()

    @contextlib.contextmanager
    def computing(self, stream: bool = False) -> Iterator[None]:
        """Limits the number of streams, and of other requests that are computed at the same time.

        A request counts once its body is complete: `buffered_bytes` limits incomplete ones. Clients
        that keep streams open leave room for requests.

        Raises:
            Busy: too many of them are open.
        """
        most = self.limits.open_streams if stream else self.limits.open_requests
        if self._computing[stream] >= most:
            raise Busy(f"{most} requests are open. Repeat it later.")
        self._computing[stream] += 1
        try:
            yield
        finally:
            self._computing[stream] -= 1

    def buffer(self, count: int) -> None:
        """Counts bytes that a request takes; raises `Busy` if there is no room for them."""
        if self.buffered + count > self.limits.buffered_bytes:
            raise Busy("The requests that are being read take too much room. Repeat it later.")
        self.buffered += count

    def free(self, count: int) -> None:
        """Gives back bytes of `buffer`."""
        self.buffered -= count
        self._freed.set()  # wakes `wait_for_room`
        self._freed.clear()

    async def wait_for_room(self, count: int) -> None:
        """Waits until there is room for this many more bytes."""
        while self.buffered and self.buffered + count > self.limits.buffered_bytes:
            await self._freed.wait()

    def check_lines(self, count: int) -> None:
        """Raises `TooLarge` if a request has too many lines."""
        if count > self.limits.lines:
            raise TooLarge(f"A request may have {self.limits.lines} lines.")

    async def drain(self, seconds: float) -> bool:
        """Refuses new requests, and waits for the open ones, this long at most.

        Returns:
            Whether all have ended.
        """
        self.draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._none_open.wait()
        except TimeoutError:
            return False
        return True


async def aside(size: int, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Calls a function, on a thread if the work is large, so that the event loop goes on.

    Args:
        size: int, bytes that the function reads or writes.
        function, arguments, named: the call.

    Returns:
        The result of the function.
    """
    if size < LARGE:
        return function(*arguments, **named)
    return await asyncio.to_thread(function, *arguments, **named)

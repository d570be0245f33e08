"""All sizes and times of the service, and its refusals: one class for each reason.

A refusal has a status in HTTP and a code in gRPC. gRPC's codes are given by name: only its protocol
needs the package.
"""

import dataclasses
import reprlib

FAILED = "The service has failed at this request; its log says why."
REASON = 500  # characters; gRPC sends a reason as metadata, of which clients take 8 KiB
# Largest limits. gRPC takes numbers of 32 bits.
MOST, MOST_HELD = 2**31 - 1, 2**63 - 1
_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 100


@dataclasses.dataclass(frozen=True)
class Limits:
    """Sizes and times that the service accepts.

    Attributes:
        body_bytes: int, of a request, and of a line of a stream.
        held_bytes: int, of all requests and streams that are being read or answered.
        head_bytes: int, of everything in an HTTP request that is no body.
        head_seconds: float, in which the head of an HTTP request must arrive.
        lines: int, of a request; a stream may have more.
        open_requests: int, complete requests that are being answered.
        open_streams: int, of `/lines`, beside the requests.
        waiting_lines: int, of a model, before requests are refused.
        read_seconds: float, in which a request, or the next line of a stream, must arrive.
        write_seconds: float, in which a client must take the next 64 KiB of an answer.
        deadline_seconds: float, for requests that bring none, and for one batch.

    Raises:
        ValueError: one of them is not positive, or too large.
    """

    body_bytes: int = 8 * 2**20
    held_bytes: int = 256 * 2**20
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
            most = MOST_HELD if name == "held_bytes" else MOST
            if not 0 < value <= most:  # NaN is not, either
                raise ValueError(f"`{name}` must be above 0 and at most {most}, got {value}.")


def shown(value: object) -> str:
    """A value of a request for a message, cut to about 100 characters."""
    try:
        return _short.repr(value)[:100]
    except ValueError:  # Python does not write an integer of more than 4,300 digits
        return "a number of thousands of digits"


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

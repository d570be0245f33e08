"""Why a request gets no answer: one class for each kind, with its status in HTTP and in gRPC.

What a client has done wrong, and what it may repeat later, are different things to it, so each kind
says which it is. gRPC's codes are given by name: only its door needs the package.
"""


class Refusal(Exception):
    """A request that is not answered. `str` is the reason, which the client gets."""

    status, code = 500, "INTERNAL"
    headers: dict[str, str] = {}


class Invalid(Refusal):
    """The request is not what the protocol or the model takes: sent again, it fails again."""

    status, code = 400, "INVALID_ARGUMENT"


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
    """The content's type or encoding is one that the door does not read."""

    status, code = 415, "INVALID_ARGUMENT"


class Busy(Refusal):
    """The queue is full. A client may repeat the request after a while."""

    status, code = 429, "RESOURCE_EXHAUSTED"
    headers = {"Retry-After": "1"}


class Unavailable(Refusal):
    """The service is going down, or no replica answers. A client may repeat the request."""

    status, code = 503, "UNAVAILABLE"
    headers = {"Retry-After": "1"}


class Late(Refusal):
    """The deadline that the client has set is over."""

    status, code = 504, "DEADLINE_EXCEEDED"

"""Refusals: one class for each reason why the service does not answer a request."""

from collections.abc import Mapping
from typing import Any, ClassVar

FAILED = "The service failed on this request; its log says why."
REASON = 500  # characters
CLOSE = {"Connection": "close"}
RETRY = {"Retry-After": "1"}
OPENAI = "/v1/"  # the beginning of the addresses of OpenAI's protocols


class Refusal(Exception):
    """A request that is not answered. The client gets the reason, cut to `REASON` characters.

    Args:
        reason: str.

    Attributes:
        status: int, of HTTP.
        headers: dict of additional headers, or None.
    """

    status: ClassVar[int] = 500
    headers: ClassVar[Mapping[str, str] | None] = None

    def __init_subclass__(cls, status: int, headers: Mapping[str, str] | None = None) -> None:
        cls.status, cls.headers = status, headers

    def __init__(self, reason: str) -> None:
        # Half a surrogate pair, which JSON can name, is not text that can be sent back.
        super().__init__(reason[:REASON].encode("utf-8", "backslashreplace").decode("utf-8"))


class Invalid(Refusal, status=400):
    """The protocol or the model does not take the request: sent again, it fails again."""


class Unauthorized(Refusal, status=401, headers={"WWW-Authenticate": "Bearer"}):
    """The request needs a key of the service."""


class Forbidden(Refusal, status=403):
    """A browser sends the request for a page of another origin."""


class Unknown(Refusal, status=404):
    """There is no such model, version or address."""


class TooSlow(Refusal, status=408, headers=CLOSE):
    """The request did not arrive in time."""


class TooLarge(Refusal, status=413):
    """The request is larger than the service reads."""


class WrongType(Refusal, status=415):
    """The protocol does not read the content's type or encoding."""


class HeadersTooLarge(Refusal, status=431):
    """The headers of the request are larger than the service reads."""


class Busy(Refusal, status=429, headers=RETRY):
    """The service has no room. A client may repeat the request after a while."""


class Unavailable(Refusal, status=503, headers=RETRY):
    """The service is shutting down, or no replica answers. A client may repeat the request."""


class WorkerLost(Unavailable, status=503, headers=RETRY):
    """The process of a worker died while computing a batch."""


class Late(Refusal, status=504):
    """The deadline of the request has passed."""


def error_body(path: str, status: int, reason: str) -> dict[str, Any]:
    """Returns an error in the format of the protocol at an address."""
    if not path.startswith(OPENAI):
        return {"error": reason}
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": reason, "type": kind, "param": None, "code": None}}

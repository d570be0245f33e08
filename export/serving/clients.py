"""Clients: who sends a request, and what share of a limit a client has."""

import collections
import contextlib
import hashlib
import hmac
import ipaddress
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from keras_transformer.export.serving.refusals import Busy, Unauthorized
from keras_transformer.types import StrPath

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

# Addresses that need no key: health, metrics, and the languages, as in LibreTranslate.
OPEN = ("/live", "/ready", "/metrics", "/v2/health/live", "/v2/health/ready", "/languages")
KEY_IN_BODY = ("/translate", "/detect")  # where a key may come as a field: its handler checks it
SITE_BITS = 64  # of an IPv6 address: a client has a whole network of this size


class Clients:
    """Tells the clients of a service apart: by key if it has keys, otherwise by address.

    Args:
        keys: dict from the SHA-256 digests of keys to the names of clients, as `read_keys` returns
            it. Defaults to `None`: requests need no key.
        proxies: networks of trusted proxies, whose header `X-Forwarded-For` counts.

    Attributes:
        keys: as above.
    """

    def __init__(
        self, keys: Mapping[bytes, str] | None = None, proxies: Iterable[Network] = ()
    ) -> None:
        self.keys: dict[bytes, str] = dict(keys or {})
        self._proxies = list(proxies)

    def identify(self, scope: Mapping[str, Any]) -> str:
        """Returns the client of an HTTP request: the name of its key, or its address.

        Args:
            scope: dict, as ASGI defines it.

        Raises:
            Unauthorized: the request needs a key, and has none or a wrong one.
        """
        pairs = [(name, value.decode("latin-1")) for name, value in scope["headers"]]
        if self.keys and scope["path"] not in OPEN:
            given = dict(pairs).get(b"authorization", "")
            if given or scope["path"] not in KEY_IN_BODY:
                scheme, _, key = given.partition(" ")
                return self.named_by(key.strip() if scheme.lower() == "bearer" else "")
        forwarded = [value for name, value in pairs if name == b"x-forwarded-for"]
        return self.address(scope["client"], forwarded)

    def named_by(self, key: object) -> str:
        """Returns the name of a key; raises `Unauthorized` if it is not one of `keys`."""
        digest = _digest(key if isinstance(key, str) else "")
        # All keys are compared, so the time of the answer tells nothing about them.
        found = [name for known, name in self.keys.items() if hmac.compare_digest(known, digest)]
        if not found:
            reason = "The key of the request is wrong" if key else "The request has no key"
            raise Unauthorized(
                f"{reason}. Send the header 'Authorization: Bearer KEY', or, to /translate, the "
                "field api_key."
            )
        return found[0]

    def address(self, peer: tuple[str, int] | None, forwarded: Iterable[str]) -> str:
        """Returns the address of a client; of an IPv6 address the first 64 bits.

        Args:
            peer: address and port of the connection, or `None` for a socket without them.
            forwarded: the values of `X-Forwarded-For`. They count if the peer is a trusted proxy:
                the client is the last address that is not one, because others may be invented.
        """
        found = _address(peer[0] if peer else "")
        hops = [hop for value in forwarded for hop in value.split(",")]
        while hops and self._trusts(found) and (hop := _address(hops.pop())):
            found = hop
        if isinstance(found, ipaddress.IPv6Address):
            return str(ipaddress.ip_network((int(found), SITE_BITS), strict=False))
        return str(found or "local")

    def _trusts(self, address: Address | None) -> bool:
        return address is not None and any(address in network for network in self._proxies)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


def _address(text: str) -> Address | None:
    """Returns an address, which may have a port; `None` if it cannot be read."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(text.partition("%")[0])
        return getattr(found, "ipv4_mapped", None) or found
    return None


def read_keys(path: StrPath) -> dict[bytes, str]:
    """Reads the keys of a file: one a line, and after a blank a name.

    Keys with one name are one client. Without a name, a key is named after its line. Blank lines
    and lines that start with `#` are left out. Only the digests of the keys stay in memory.

    Returns:
        dict from the SHA-256 digest of each key to its name.

    Raises:
        ValueError: the file cannot be read, or has no key, a key twice, or a key that a header
            cannot have.
    """
    keys: dict[bytes, str] = {}
    try:
        lines = pathlib.Path(path).read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"`api_keys` must be a file with a key in each line: {error}") from error
    for number, line in enumerate(lines, 1):
        key, *name = line.decode("utf-8", "replace").split(maxsplit=1) or ["#"]
        if key.startswith("#"):
            continue
        if not (key.isascii() and key.isprintable()):
            raise ValueError(f"The key in line {number} of {path} must have ASCII characters only.")
        if _digest(key) in keys:
            raise ValueError(f"Line {number} of {path} repeats a key. Remove one of both lines.")
        keys[_digest(key)] = name[0].strip() if name else f"line {number}"
    if not keys:
        raise ValueError(
            f"{path} has no key. Write one key a line, such as the output of: "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return keys


def read_proxies(texts: Iterable[str]) -> list[Network]:
    """Returns the networks of trusted proxies; raises `ValueError` for a wrong address."""
    try:
        return [ipaddress.ip_network(text.strip()) for text in texts]
    except ValueError as error:
        raise ValueError(
            f"`trusted_proxies` are addresses or networks, such as 10.0.0.7 or 10.0.0.0/24: {error}"
        ) from error


class Shares:
    """Counts what each client holds of a limit, such as open requests.

    A client may hold the limit, less half of what the other clients hold. So a client alone may
    hold all of it, clients that hold as much as they can leave room for one more, and all of them
    together hold less than twice the limit.

    Args:
        limit: int.
        what: str, the counted things in the message of a refusal, such as "lines wait already".

    Attributes:
        limit: as above.
        held: Counter of what each client holds, without clients that hold nothing.

    Example:

    >>> shares = Shares(2, "requests are open")
    >>> shares.add("greedy", 2)
    >>> shares.refuses("greedy"), shares.refuses("other")
    (True, False)
    """

    def __init__(self, limit: int, what: str) -> None:
        self.limit: int = limit
        self.held: collections.Counter[str] = collections.Counter()
        self._what = what

    @property
    def total(self) -> int:
        """The sum over all clients."""
        return self.held.total()

    def share(self, client: str) -> float:
        """Returns how much a client may hold now."""
        return self.limit - (self.total - self.held[client]) / 2

    def refuses(self, client: str, count: int = 1) -> bool:
        """Returns whether a client is refused this much more."""
        return self.held[client] + count > self.share(client)

    def check(self, client: str, count: int = 1) -> None:
        """Raises `Busy` if a client is refused this much more."""
        if self.refuses(client, count):
            raise Busy(
                f"{self.total} {self._what}, {self.held[client]} of them of this client, whose "
                f"share is {int(self.share(client))}. Repeat the request in a second."
            )

    def add(self, client: str, count: int) -> None:
        """Counts what a client gets, or gives back if it is negative."""
        self.held[client] += count
        if not self.held[client]:
            del self.held[client]

    @contextlib.contextmanager
    def hold(self, client: str) -> Iterator[None]:
        """Counts one within the block; raises `Busy` if the client is refused."""
        self.check(client)
        self.add(client, 1)
        try:
            yield
        finally:
            self.add(client, -1)

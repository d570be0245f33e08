"""The admission of requests: counts the open ones, and refuses what exceeds the limits."""

import asyncio
import contextlib
from collections.abc import Iterator

from keras_transformer.export.serving.clients import Shares
from keras_transformer.export.serving.limits import Limits
from keras_transformer.export.serving.refusals import TooLarge, Unavailable


class Admission:
    """Counts the open requests of a service, and refuses what exceeds its limits.

    Args:
        limits: `Limits`.

    Attributes:
        limits: as above.
        open_requests: int, requests that are being read or computed.
        requests, streams: `Shares` of complete requests that are computed, and of streams of
            lines. Clients that keep streams open leave room for requests. `bytes` bounds incomplete
            requests.
        bytes: `Shares` of the bytes of all of them.
        draining: bool, whether new requests are refused.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits: Limits = limits
        self.open_requests: int = 0
        self.requests: Shares = Shares(limits.open_requests, "requests are open")
        self.streams: Shares = Shares(limits.open_streams, "streams are open")
        self.bytes: Shares = Shares(limits.buffered_bytes, "bytes are taken by requests")
        self.draining: bool = False
        self._none_open, self._freed = asyncio.Event(), asyncio.Event()
        self._none_open.set()

    @contextlib.contextmanager
    def count_request(self) -> Iterator[None]:
        """Counts an open request; raises `Unavailable` if the service is shutting down."""
        self.open_requests += 1
        self._none_open.clear()
        try:
            if self.draining:
                raise Unavailable("The service is shutting down. Repeat the request elsewhere.")
            yield
        finally:
            self.open_requests -= 1
            if not self.open_requests:
                self._none_open.set()

    def buffer(self, client: str, count: int) -> None:
        """Counts bytes of a client's request; raises `Busy` if there is no room for them."""
        self.bytes.check(client, count)
        self.bytes.add(client, count)

    def free(self, client: str, count: int) -> None:
        """Gives back bytes of `buffer`."""
        self.bytes.add(client, -count)
        self._freed.set()  # wakes `wait_for_room`
        self._freed.clear()

    async def wait_for_room(self, client: str, count: int) -> None:
        """Waits until there is room for this many more bytes of a client."""
        while self.bytes.total and self.bytes.refuses(client, count):
            await self._freed.wait()

    def check_lines(self, count: int) -> None:
        """Raises `TooLarge` if a request has too many lines."""
        if count > self.limits.lines:
            raise TooLarge(f"A request may have {self.limits.lines} lines.")

    async def drain(self, seconds: float) -> bool:
        """Refuses new requests, and waits for the open ones, at most this long.

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

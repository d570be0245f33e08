"""The admission of requests: counts the open ones, and refuses what exceeds the limits."""

import asyncio
import collections
import contextlib
from collections.abc import Iterator

from keras_transformer.export.serving.limits import Limits
from keras_transformer.export.serving.refusals import Busy, TooLarge, Unavailable


class Admission:
    """Counts the open requests of a service, and refuses what exceeds its limits.

    Args:
        limits: `Limits`.

    Attributes:
        limits: as above.
        open_requests: int, requests that are being read or computed.
        buffered: int, their bytes.
        draining: bool, whether new requests are refused.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits: Limits = limits
        self.open_requests: int = 0
        self.buffered: int = 0
        self.draining: bool = False
        self._computing: collections.Counter[bool] = collections.Counter()
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

    @contextlib.contextmanager
    def limit_computing(self, stream: bool = False) -> Iterator[None]:
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

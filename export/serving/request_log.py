"""The log of requests: the numbers of each request, and a thread that writes them as lines."""

import threading
import time
from typing import TYPE_CHECKING, Protocol

from keras_transformer.export.serving.admission import Admission

if TYPE_CHECKING:  # `service` imports this module, and names the extra if its packages are missing
    from prometheus_client import Counter

LOG_LINES = 10_000  # lines that may wait to be written
LOG_SECONDS = 2.0  # time to write the waiting lines when the service ends
LOG_PAUSE = 0.02  # seconds in which lines are gathered to be written together


class Output(Protocol):
    """A file for text."""

    def write(self, text: str, /) -> object:
        """Writes text."""

    def flush(self) -> object:
        """Hands written text to the system."""


class Record:
    """An open request: its bytes, and its numbers for metrics and log.

    Args:
        protocol: str.
        admission: `Admission`, where its bytes count.
        client: str, as `Clients` names it. Defaults to "": it is not known.

    Attributes:
        protocol, client, model: str.
        lines, tokens, status: int; `status` as in HTTP.
        waited: float, seconds in the queue.
        start: float, by `time.monotonic`.
        buffered: int, bytes.
    """

    def __init__(self, protocol: str, admission: Admission, client: str = "") -> None:
        self.protocol: str = protocol
        self.client: str = client
        self.model: str = ""
        self.lines: int = 0
        self.tokens: int = 0
        self.buffered: int = 0
        self.waited: float = 0.0
        self.status: int = 200
        self.start: float = time.monotonic()
        self._admission = admission

    def buffer(self, count: int) -> None:
        """Counts bytes that are kept for the request; raises `Busy` if there is no room."""
        self._admission.buffer(self.client, count)
        self.buffered += count

    def free(self, count: int) -> None:
        """Stops counting bytes."""
        self._admission.free(self.client, count)
        self.buffered -= count

    def identify(self, client: str) -> None:
        """Changes the client, who counts for what the request holds."""
        count = self.buffered
        self.free(count)
        self.client = client
        self.buffer(count)


class Log:
    """Writes lines on a thread, so that a slow, full or closed output delays no response.

    Args:
        file: text file.
        dropped: counter of the lines that were not written.
    """

    def __init__(self, file: Output, dropped: "Counter") -> None:
        self._file, self._dropped = file, dropped
        self._lines: list[str] = []
        self._arrived, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queues a line. Drops it if `LOG_LINES` wait."""
        if len(self._lines) >= LOG_LINES:
            self._dropped.inc()
            return
        self._lines.append(line)
        self._arrived.set()

    def close(self) -> None:
        """Writes what is queued, within `LOG_SECONDS`."""
        self._closing.set()
        self._arrived.set()
        self._thread.join(LOG_SECONDS)

    def _work(self) -> None:
        while self._lines or not self._closing.is_set():
            self._arrived.wait()
            self._closing.wait(LOG_PAUSE)
            self._arrived.clear()
            lines = self._lines[:]
            try:
                self._file.write("".join(lines))
                self._file.flush()
            except (OSError, ValueError):  # full or closed
                self._dropped.inc(len(lines))
            del self._lines[: len(lines)]
            if self._closing.is_set():
                self._arrived.set()

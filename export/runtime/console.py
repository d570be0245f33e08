"""Messages and a progress bar on standard error of the command lines."""

import collections
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TextIO


class LineProgress:
    """A bar on stderr: lines done, their rate and, for a file, the share and the time left.

    Args:
        total_bytes: int, size of the input; 0 if it is unknown.
        shown: bool, whether the bar is drawn.
    """

    def __init__(self, total_bytes: int, shown: bool):
        self._total, self._shown = total_bytes, shown
        self._waiting = collections.deque()  # bytes of each line that was read but not yet written
        self._bytes = self._lines = 0
        self._start = self._last = time.monotonic()

    def reading(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yields the lines and counts their bytes."""
        for line in lines:
            self._waiting.append(len(line))
            yield line

    def wrote_line(self) -> None:
        """Counts the next line as done."""
        self._bytes += self._waiting.popleft()
        self._lines += 1
        now = time.monotonic()
        if self._shown and now - self._last > 0.2:
            self._last = now
            self._draw(now - self._start)

    def _draw(self, seconds: float) -> None:
        text = f"{self._lines:,} lines, {self._lines / seconds:,.1f} lines/s"
        if self._total:
            share = min(1.0, self._bytes / self._total)
            left = int(seconds * (1 - share) / share)
            bar = ("#" * int(20 * share)).ljust(20, ".")
            text = f"[{bar}] {share:4.0%}, {text}, {left // 60}:{left % 60:02d} left"
        tell(f"\r\033[K{text}")

    def say(self, text: str) -> None:
        """Prints a message above the bar."""
        tell(("\r\033[K" if self._shown else "") + text + "\n")

    def close(self) -> None:
        """Draws the bar for the last time."""
        if self._shown:
            self._draw(max(time.monotonic() - self._start, 1e-9))
            tell("\n")


def tell(text: str) -> None:
    """Writes to standard error; does nothing if it is closed or full."""
    if sys.stderr is not None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            abandon(sys.stderr)


def abandon(stream: TextIO) -> None:
    """Redirects a failed stream to the null device, so that Python can flush it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

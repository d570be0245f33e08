"""Messages of the command line on standard error: a line of progress, and lines of their own."""

import collections
import os
import sys
import time


class Progress:
    """A line on stderr with lines done, their rate and, for a file, the share and the time left."""

    def __init__(self, total_bytes, shown):
        self._total, self._shown = total_bytes, shown
        self._waiting = collections.deque()  # bytes of each line that was read and not yet written
        self._bytes = self._lines = 0
        self._start = self._last = time.monotonic()

    def reading(self, lines):
        for line in lines:
            self._waiting.append(len(line))
            yield line

    def wrote_line(self):
        self._bytes += self._waiting.popleft()
        self._lines += 1
        now = time.monotonic()
        if self._shown and now - self._last > 0.2:
            self._last = now
            self._draw(now - self._start)

    def _draw(self, seconds):
        text = f"{self._lines:,} lines, {self._lines / seconds:,.1f} lines/s"
        if self._total:
            share = min(1.0, self._bytes / self._total)
            left = int(seconds * (1 - share) / share)
            bar = ("#" * int(20 * share)).ljust(20, ".")
            text = f"[{bar}] {share:4.0%}, {text}, {left // 60}:{left % 60:02d} left"
        tell(f"\r\033[K{text}")

    def say(self, text):
        """Prints a line of its own, above the bar."""
        tell(("\r\033[K" if self._shown else "") + text + "\n")

    def close(self):
        if self._shown:
            self._draw(max(time.monotonic() - self._start, 1e-9))
            tell("\n")


def tell(text):
    """Writes to standard error; where that is closed or full, all goes on without."""
    if sys.stderr is not None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            abandon(sys.stderr)


def abandon(stream):
    """Points a stream that failed to nowhere: Python flushes it at exit, and would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())

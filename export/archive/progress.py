"""How far a job is, on standard error: lines done, lines a second, the time left."""

import sys
import time

from keras_transformer.export.runtime.console import tell


class JobProgress:
    """A line that is drawn over on a terminal, and now and then a new one in a file.

    Args:
        total: int, lines of the job.
        done: int, those that an earlier run has done.
        quiet: bool, tell nothing.
    """

    def __init__(self, total, done=0, quiet=False):
        self._total, self._before, self.done = total, done, done
        terminal = sys.stderr is not None and sys.stderr.isatty()
        self._quiet, self._end = quiet, "" if terminal else "\n"
        self._begin, self._pause = "\r\033[K" if terminal else "", 0.5 if terminal else 30
        self._start = self._last = time.monotonic()

    def add(self, lines):
        """Counts lines that were done, and tells it if it is time to."""
        self.done += lines
        if time.monotonic() - self._last >= self._pause and self.done < self._total:
            self._last = time.monotonic()
            self.tell(self._end)

    def tell(self, end="\n"):
        if not self._quiet:
            tell(f"{self._begin}{self}{end}")

    def __str__(self):
        seconds = max(time.monotonic() - self._start, 1e-9)
        rate = (self.done - self._before) / seconds
        share = self.done / max(1, self._total)
        told = f"{self.done:,} of {self._total:,} lines, {share:.1%}, {rate:,.1f} lines/s"
        if not rate or self.done == self._total:
            return told
        minutes, seconds = divmod(round((self._total - self.done) / rate), 60)
        return f"{told}, {minutes // 60}:{minutes % 60:02d}:{seconds:02d} left"

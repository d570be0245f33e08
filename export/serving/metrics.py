"""Prometheus' metrics and the log: one line of JSON a request, without its text.

They are kept where the requests are counted, in the process of the doors, with the package that
Ray itself uses. Ray's own metrics leave through an agent of its dashboard, on a port for each
machine; here they are at `/metrics` of the service, the replica being a label.
"""

import collections
import json
import sys
import threading
import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
_LINES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# The latest requests, of which percentiles are told.
LATEST = 1024
QUANTILES = (0.5, 0.95, 0.99)
# Log lines that wait to be written; seconds that they have at the end.
LOG_LINES, LOG_SECONDS = 10_000, 2.0
LOG_PAUSE = 0.02  # seconds in which lines are gathered, to be written together


class Log:
    """Writes lines on a thread: an output that is slow, full or closed delays no answer.

    Args:
        file: text file.
        dropped: counter of the lines that were not written.
    """

    def __init__(self, file, dropped):
        self._file, self._dropped = file, dropped
        self._lines, self._arrived, self._closing = [], threading.Event(), threading.Event()
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

    def _work(self):
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


class Metrics:
    """What is counted of requests, batches and queues.

    Args:
        log: file that gets a line a request; None for none.
    """

    def __init__(self, log=sys.stdout):
        self.registry = registry = CollectorRegistry()

        def made(kind, name, text, labels, **options):
            return kind(f"keras_transformer_{name}", text, labels, registry=registry, **options)

        request = ("door", "model")
        self._requests = made(Counter, "requests", "Requests.", (*request, "status"))
        self._seconds = made(
            Histogram, "request_seconds", "From begin to end.", request, buckets=_SECONDS
        )
        self._waits = made(
            Histogram, "wait_seconds", "Of requests in the queue.", ("model",), buckets=_SECONDS
        )
        self._lines = made(Counter, "lines", "Lines answered.", ("model", "replica"))
        self._tokens = made(Counter, "tokens", "Tokens read.", ("model", "replica"))
        self._busy = made(Counter, "busy_seconds", "Of the replica.", ("model", "replica"))
        self._batches = made(
            Histogram, "batch_lines", "Lines of a batch.", ("model",), buckets=_LINES
        )
        self._waiting = made(Gauge, "waiting_lines", "Lines in the queue.", ("model",))
        self._latency = made(
            Gauge, "latency_seconds", f"Of the {LATEST} latest.", ("model", "quantile")
        )
        self._latest = collections.defaultdict(lambda: collections.deque(maxlen=LATEST))
        dropped = made(Counter, "log_dropped", "Log lines that were not written.", ())
        self._log = None if log is None else Log(log, dropped)
        self._open = made(Gauge, "open_requests", "Being read or answered.", ())
        self._held = made(Gauge, "held_bytes", "Of these requests.", ())

    def count_open(self, requests, held_bytes):
        """Takes functions that count the open requests and their bytes."""
        self._open.set_function(requests)
        self._held.set_function(held_bytes)

    def watch(self, name, queue):
        """Has the length of a model's queue told."""
        self._waiting.labels(name).set_function(lambda: queue.waiting)

    def batch_done(self, name, batch):
        """Counts a `BatchResult`."""
        self._batches.labels(name).observe(len(batch.results))
        self._lines.labels(name, batch.replica).inc(len(batch.results))
        self._tokens.labels(name, batch.replica).inc(sum(batch.lengths))
        self._busy.labels(name, batch.replica).inc(batch.seconds)

    def request_done(self, record, seconds):
        """Counts a request, and writes its line."""
        self._requests.labels(record.door, record.model, record.status).inc()
        self._seconds.labels(record.door, record.model).observe(seconds)
        if record.model:
            self._waits.labels(record.model).observe(record.waited)
            self._latest[record.model].append(seconds)
        if self._log is None:
            return
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "door": record.door,
            "model": record.model,
            "status": record.status,
            "lines": record.lines,
            "tokens": record.tokens,
            "wait_ms": round(1e3 * record.waited, 1),
            "ms": round(1e3 * seconds, 1),
        }
        self._log.write(json.dumps(line) + "\n")

    def close(self):
        """Ends the log."""
        if self._log is not None:
            self._log.close()

    def page(self):
        """What Prometheus reads, bytes."""
        for model, latest in self._latest.items():
            ordered = sorted(latest)
            for quantile in QUANTILES:
                value = ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]
                self._latency.labels(model, quantile).set(value)
        return generate_latest(self.registry)

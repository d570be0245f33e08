"""The metrics of the service for Prometheus, and one line of JSON for each request."""

import collections
import json
import sys
import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from keras_transformer.export.serving.admission import Admission
from keras_transformer.export.serving.engine import BatchResult
from keras_transformer.export.serving.line_queue import LineQueue
from keras_transformer.export.serving.request_log import Log, Output, Record

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)
_LINES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Percentiles are computed from the latest requests.
LATEST = 1024
QUANTILES = (0.5, 0.95, 0.99)


class Metrics:
    """Counts requests, batches and queues.

    Args:
        log: file that gets a line for each request, or None.

    Attributes:
        registry: of `prometheus_client`.
    """

    def __init__(self, log: Output | None = sys.stdout) -> None:
        self.registry: CollectorRegistry = CollectorRegistry()
        batch, request = ("model", "replica"), ("protocol", "model")
        self._requests = self._make(Counter, "requests", "Requests.", (*request, "status"))
        self._seconds = self._make(
            Histogram, "request_seconds", "Time of requests.", request, buckets=_SECONDS
        )
        self._waits = self._make(
            Histogram, "wait_seconds", "Time in the queue.", ("model",), buckets=_SECONDS
        )
        self._lines = self._make(Counter, "lines", "Lines.", batch)
        self._tokens = self._make(Counter, "tokens", "Tokens read.", batch)
        self._busy = self._make(Counter, "busy_seconds", "Busy time of workers.", batch)
        self._batches = self._make(
            Histogram, "batch_lines", "Lines of a batch.", ("model",), buckets=_LINES
        )
        self._waiting = self._make(Gauge, "waiting_lines", "Lines in the queue.", ("model",))
        self._latency = self._make(
            Gauge, "latency_seconds", f"Of the {LATEST} latest requests.", ("model", "quantile")
        )
        self._latest: dict[str, collections.deque[float]] = {}
        dropped = self._make(Counter, "log_dropped", "Log lines that were not written.")
        self._log = None if log is None else Log(log, dropped)

    def _make(
        self, kind: Any, name: str, text: str, labels: tuple[str, ...] = (), **options: Any
    ) -> Any:
        name = f"keras_transformer_{name}"
        return kind(name, text, labels, registry=self.registry, **options)

    def watch_admission(self, admission: Admission) -> None:
        """Reports the open requests of a service and their bytes."""
        open_requests = self._make(Gauge, "open_requests", "Requests being read or computed.")
        buffered = self._make(Gauge, "buffered_bytes", "Bytes of open requests.")
        open_requests.set_function(lambda: admission.open_requests)
        buffered.set_function(lambda: admission.bytes.total)

    def watch_queue(self, name: str, queue: LineQueue) -> None:
        """Reports how many lines wait in the queue of a model."""
        self._waiting.labels(name).set_function(lambda: queue.waiting)

    def batch_done(self, name: str, batch: BatchResult) -> None:
        """Counts a batch of a model."""
        if batch.results:  # not a part of a stream
            self._batches.labels(name).observe(len(batch.results))
        self._lines.labels(name, batch.replica).inc(len(batch.results))
        self._tokens.labels(name, batch.replica).inc(sum(batch.lengths))
        self._busy.labels(name, batch.replica).inc(batch.seconds)

    def request_done(self, record: Record) -> None:
        """Counts a request, and writes its line."""
        seconds = time.monotonic() - record.start
        self._requests.labels(record.protocol, record.model, record.status).inc()
        self._seconds.labels(record.protocol, record.model).observe(seconds)
        if record.model:
            self._waits.labels(record.model).observe(record.waited)
            latest = self._latest.setdefault(record.model, collections.deque(maxlen=LATEST))
            latest.append(seconds)
        if self._log is None:
            return
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "protocol": record.protocol,
            "client": record.client,
            "model": record.model,
            "status": record.status,
            "lines": record.lines,
            "tokens": record.tokens,
            "wait_ms": round(1e3 * record.waited, 1),
            "ms": round(1e3 * seconds, 1),
        }
        self._log.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Ends the log."""
        if self._log is not None:
            self._log.close()

    def page(self) -> bytes:
        """Returns the page for Prometheus."""
        for model, latest in self._latest.items():
            ordered = sorted(latest)
            for quantile in QUANTILES:
                value = ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]
                self._latency.labels(model, quantile).set(value)
        return generate_latest(self.registry)

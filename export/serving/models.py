"""What the doors ask: models by name, each with its queue, and one record a request.

A door turns a request of its protocol into lines and an answer into its protocol; all else is here,
so that limits, deadlines, metrics and the log are the same at every door.
"""

import asyncio
import contextlib
import dataclasses
import logging
import time

from keras_transformer.export.runtime.signature import MOST_SEED
from keras_transformer.export.serving.line_queue import LineQueue
from keras_transformer.export.serving.refusals import (
    Busy,
    Invalid,
    Refusal,
    TooLarge,
    Unavailable,
    Unknown,
)

logger = logging.getLogger("keras_transformer.serving")


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a service takes.

    Attributes:
        body_bytes: int, of a request.
        held_bytes: int, of all requests that are being read or answered.
        lines: int, of a request; a stream may have more.
        open_requests: int, that are being read or answered.
        waiting_lines: int, of a model, before requests are refused.
        read_seconds: float, in which a request, or the next part of a stream, must arrive.
        deadline_seconds: float, for requests that bring none.
    """

    body_bytes: int = 8 * 2**20
    held_bytes: int = 256 * 2**20
    lines: int = 10_000
    open_requests: int = 1024
    waiting_lines: int = 512
    read_seconds: float = 20.0
    deadline_seconds: float = 300.0


class Model:
    """A model behind its queue.

    Args:
        name: str, as it stands in addresses.
        workers: object with `answer(items, seed)`, `describe()`, `measure(items)`, `calls` and
            `batch_tokens`, as `Workers`.
        limits: `Limits`.
        metrics: `Metrics`.
    """

    def __init__(self, name, workers, limits, metrics):
        self.name, self._workers, self._metrics = name, workers, metrics
        self.queue = LineQueue(
            self._send,
            workers.measure,
            workers.calls,
            workers.batch_tokens,
            limits.waiting_lines,
        )
        self.description = None

    async def open(self):
        """Asks a worker what is served."""
        self.description = await self._workers.describe()

    async def _send(self, items, seed):
        sent = await self._workers.answer(items, seed)
        self._metrics.batch_done(self.name, sent)
        self.description = sent.description
        return sent

    def seed(self, value):
        """A seed from a request, checked; None is none."""
        if value is None:
            return None
        if not self.description.samples:
            raise Invalid(f"{self.name} draws no random numbers: leave out the seed.")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_SEED:
            raise Invalid(f"The seed must be an integer from 0 to {MOST_SEED}.")
        return value


class Record:
    """One request, as metrics and log know it: never its text."""

    def __init__(self, door):
        self.door, self.model = door, ""
        self.lines = self.tokens = 0
        self.waited, self.status = 0.0, 200
        self.start = time.monotonic()


class Models:
    """All models of a service, its limits, and what counts its requests.

    Args:
        limits: `Limits`.
        metrics: `Metrics`.

    Attributes:
        draining: bool. True: new requests are refused.
    """

    def __init__(self, limits, metrics):
        self.limits, self.metrics = limits, metrics
        self._models, self._open, self._held = {}, 0, 0
        self.draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def add(self, name, workers):
        """Adds a model; `workers` as `Model` takes them."""
        model = Model(name, workers, self.limits, self.metrics)
        await model.open()
        self._models[name] = model
        self.metrics.watch(name, model.queue)

    @property
    def ready(self):
        """Whether requests are taken."""
        return bool(self._models) and not self.draining

    def names(self):
        """The models' names, sorted."""
        return sorted(self._models)

    def get(self, name, version=""):
        """A model; raises `Unknown` where there is none of this name and version."""
        model = self._models.get(name)
        if model is None:
            raise Unknown(f"There is no model {name!r}. There are: {', '.join(self.names())}.")
        served = model.description.version
        if version not in ("", served):
            raise Unknown(f"{name} has no version {version!r}, but {served!r}.")
        return model

    @contextlib.contextmanager
    def request(self, door):
        """Counts and logs a request, whatever becomes of it; yields its `Record`.

        Raises:
            Unavailable: the service is going down.
            Busy: too many requests are open.
        """
        record = Record(door)
        self._open += 1
        self._idle.clear()
        try:
            if self.draining:
                raise Unavailable("The service is going down. Repeat the request elsewhere.")
            if self._open > self.limits.open_requests:
                raise Busy(f"{self.limits.open_requests} requests are open. Repeat it later.")
            yield record
        except Refusal as refusal:
            record.status = refusal.status
            raise
        except asyncio.CancelledError:
            record.status = 499  # the client has gone
            raise
        except Exception:  # of any kind: it is logged and counted, and goes on to the door
            record.status = 500
            logger.exception("a request has failed")
            raise
        finally:
            self._open -= 1
            if not self._open:
                self._idle.set()
            self.metrics.request_done(record, time.monotonic() - record.start)

    @contextlib.contextmanager
    def held(self):
        """Counts the bytes of a request that is being read; yields a function that adds some."""
        mine = 0

        def add(count):
            nonlocal mine
            mine += count
            self._held += count
            if mine > self.limits.body_bytes:
                raise TooLarge(f"A request may have {self.limits.body_bytes} bytes.")
            if self._held > self.limits.held_bytes:
                raise Busy("The requests that are being read take too much room. Repeat it later.")

        try:
            yield add
        finally:
            self._held -= mine

    async def answer(self, record, model, items, seed=None, seconds=None):
        """The results of a request's lines, a list; `seconds` is what the client gives it."""
        if len(items) > self.limits.lines:
            raise TooLarge(f"A request may have {self.limits.lines} lines, not {len(items)}.")
        most = self.limits.deadline_seconds
        deadline = time.monotonic() + min(most, most if seconds is None else max(0.0, seconds))
        record.model = model.name
        record.lines += len(items)
        answered = await model.queue.answer(items, seed, deadline)
        record.tokens += answered.tokens
        record.waited = max(record.waited, answered.waited)
        return answered.results

    async def drain(self, seconds):
        """Refuses new requests, and waits until those taken in are answered, so long at most.

        Returns:
            Whether all were.
        """
        self.draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

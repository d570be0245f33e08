"""What the doors ask: models by name, each with its queue, and one record a request.

A door turns a request of its protocol into lines and an answer into its protocol; all else is here,
so that limits, deadlines, metrics and the log are the same at every door.
"""

import asyncio
import collections
import contextlib
import logging
import time

from keras_transformer.export.artefact.signature import MOST_SEED
from keras_transformer.export.serving.limits import (
    Busy,
    Invalid,
    Late,
    Refusal,
    TooLarge,
    Unavailable,
    Unknown,
    shown,
)
from keras_transformer.export.serving.line_queue import LineQueue

logger = logging.getLogger("keras_transformer.serving")


class Model:
    """A model behind its queue.

    Args:
        name: str, as it stands in addresses.
        pool: `Pool`, opened.
        description: `Description` of what the pool serves.
        limits: `Limits`.
        metrics: `Metrics`.
    """

    def __init__(self, name, pool, description, limits, metrics):
        self.name, self.pool, self.description = name, pool, description
        self._metrics, self._most_seconds = metrics, limits.deadline_seconds
        self.queue = LineQueue(
            self._compute, pool.measure, pool.workers, pool.batch_tokens, limits.waiting_lines
        )

    async def _compute(self, items, seed):
        try:
            # Every request of the batch is over by then, so a worker that hangs is given up.
            async with asyncio.timeout(self._most_seconds):
                batch = await self.pool.compute(items, seed)
        except TimeoutError as error:
            raise Late("The batch took longer than any request may.") from error
        self._metrics.batch_done(self.name, batch)
        self.description = batch.description
        return batch

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
        held: int, bytes of the requests that are being read or answered.
    """

    def __init__(self, limits, metrics):
        self.limits, self.metrics = limits, metrics
        self._models, self._open, self.held = {}, 0, 0
        self._answering = collections.Counter()
        self.draining = False
        metrics.count_open(lambda: self._open, lambda: self.held)
        self._idle = asyncio.Event()
        self._idle.set()
        self._freed = asyncio.Event()

    def add(self, name, pool, description):
        """Adds a model. `pool` has been opened, and gave the `Description`."""
        model = Model(name, pool, description, self.limits, self.metrics)
        self._models[name] = model
        self.metrics.watch(name, model.queue)

    async def close(self):
        """Ends all queues; requests that wait are not answered."""
        for model in self._models.values():
            await model.queue.close()

    @property
    def ready(self):
        """Whether requests are taken, and each model has a worker that can compute."""
        models = self._models.values()
        return bool(models) and not self.draining and all(model.pool.ready for model in models)

    def names(self):
        """The models' names, sorted."""
        return sorted(self._models)

    def get(self, name, version=""):
        """A model; raises `Unknown` where there is none of this name and version."""
        model = self._models.get(name)
        if model is None:
            raise Unknown(f"There is no model {shown(name)}. There are: {', '.join(self.names())}.")
        served = model.description.version
        if version not in ("", served):
            raise Unknown(f"{name} has no version {shown(version)}, but {served!r}.")
        return model

    @contextlib.contextmanager
    def request(self, door):
        """Counts and logs a request, whatever becomes of it; yields its `Record`.

        Args:
            door: str, the protocol.

        Raises:
            Unavailable: the service is shutting down.
        """
        record = Record(door)
        self._open += 1
        self._idle.clear()
        try:
            if self.draining:
                raise Unavailable("The service is shutting down. Repeat the request elsewhere.")
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
    def answering(self, stream=False):
        """Limits the number of streams, and of requests that are answered at the same time.

        A request counts once its body is complete: `held_bytes` limits incomplete ones.

        Args:
            stream: bool. Streams and other requests are counted apart, so that clients that keep
                streams open leave room for requests.

        Raises:
            Busy: too many of them are open.
        """
        most = self.limits.open_streams if stream else self.limits.open_requests
        if self._answering[stream] >= most:
            raise Busy(f"{most} requests are open. Repeat it later.")
        self._answering[stream] += 1
        try:
            yield
        finally:
            self._answering[stream] -= 1

    async def wait_for_room(self, count: int) -> None:
        """Waits until there is room for this many more bytes."""
        while self.held and self.held + count > self.limits.held_bytes:
            await self._freed.wait()

    @contextlib.contextmanager
    def holding(self):
        """Counts the bytes of a request in the block; yields a function that adds some.

        The function raises `Busy`, and adds nothing, if there is no room.
        """
        mine = 0

        def add(count: int) -> None:
            nonlocal mine
            if count > 0 and self.held + count > self.limits.held_bytes:
                raise Busy("The requests that are being read take too much room. Repeat it later.")
            mine += count
            self.held += count
            if count < 0:
                self._wake()

        try:
            yield add
        finally:
            self.held -= mine
            self._wake()

    def _wake(self):
        """Lets those who wait for room look again."""
        self._freed.set()
        self._freed.clear()

    def check_lines(self, count: int) -> None:
        """Raises `TooLarge` where a request has too many lines."""
        if count > self.limits.lines:
            raise TooLarge(f"A request may have {self.limits.lines} lines.")

    async def answer(self, record, model, items, seed=None, seconds=None):
        """The results of a request's lines, a list; `seconds` is what the client gives it."""
        self.check_lines(len(items))
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

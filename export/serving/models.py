"""The models of a service: each with its queue, and one record of each request.

A protocol turns a request into lines, and results into a response. Limits, deadlines, metrics and
the log are applied here, and so are the same for every protocol.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any

from keras_transformer.export.artefact.messages import shorten
from keras_transformer.export.serving.admission import Admission
from keras_transformer.export.serving.clients import Clients
from keras_transformer.export.serving.engine import BatchResult, Description
from keras_transformer.export.serving.fields import Table
from keras_transformer.export.serving.glossaries import by_line
from keras_transformer.export.serving.limits import Limits
from keras_transformer.export.serving.line_queue import LineQueue, Lines, Options, Receive
from keras_transformer.export.serving.metrics import Metrics
from keras_transformer.export.serving.pools import Pool
from keras_transformer.export.serving.refusals import (
    Late,
    Refusal,
    Unavailable,
    Unknown,
)
from keras_transformer.export.serving.request_log import Record
from keras_transformer.export.serving.request_options import checked_options

logger: logging.Logger = logging.getLogger("keras_transformer.serving")


class Model:
    """A model behind its queue.

    Args:
        name: str, as in addresses.
        pool: `Pool`, opened.
        description: `Description` of what the pool served first.
        limits: `Limits`.
        metrics: `Metrics`.

    Attributes:
        name, pool: as above.
        queue: `LineQueue`.
    """

    def __init__(
        self, name: str, pool: Pool, description: Description, limits: Limits, metrics: Metrics
    ) -> None:
        self.name: str = name
        self.pool: Pool = pool
        self._description = description
        self._metrics, self._most_seconds = metrics, limits.deadline_seconds
        self.queue: LineQueue = LineQueue(
            self._run_batch, pool.measure, pool.workers, pool.batch_tokens, limits.waiting_lines
        )

    async def _run_batch(
        self, items: Lines, options: Options, emit: Callable[[Any], bool] | None = None
    ) -> BatchResult:
        try:
            # Every request of the batch has ended by then, so a worker that hangs is abandoned.
            async with asyncio.timeout(self._most_seconds):
                if emit is None:
                    batch = await self.pool.run_batch(items, options)
                else:
                    batch = await self.pool.run_stream(items[0], options, emit)
        except TimeoutError as error:
            raise Late("The batch took longer than any request may.") from error
        self._metrics.batch_done(self.name, batch)
        self._description = batch.description
        return batch

    @property
    def description(self) -> Description:
        """The `Description` of the artefact in use, or of the last batch if that is not known."""
        return getattr(self.pool, "in_use", self._description)

    def checked_options(
        self,
        given: Mapping[str, Any],
        lines: int | None = None,
        table: Table = (),
    ) -> dict[str, Any]:
        """Returns the checked options of a request, as `Runner.options` lists them.

        Numbers may be written as text, and lists and glossaries as JSON in a text.

        Args:
            given: dict from names to values. `None` counts as not passed.
            lines: int, number of lines of the request. An option may then be a list with a value
                for each line. Defaults to `None`: the number is not known, so one value applies to
                all lines.
            table: the fields of the protocol. Only those that set an option are read.

        Raises:
            Invalid: a name is neither an option of the model nor a field of the protocol, or a
                value is wrong.
        """
        return checked_options(self.name, self.description.options, given, lines, table)


class Models:
    """All models of a service, and the requests to them.

    Args:
        limits: `Limits`.
        metrics: `Metrics`.
        clients: `Clients`. Defaults to `None`: requests need no key.

    Attributes:
        admission: `Admission`, which every request passes.
        limits, metrics, clients: as above.
    """

    def __init__(self, limits: Limits, metrics: Metrics, clients: Clients | None = None) -> None:
        self.limits: Limits = limits
        self.clients: Clients = clients or Clients()
        self.metrics: Metrics = metrics
        self.admission: Admission = Admission(limits)
        self._models: dict[str, Model] = {}
        metrics.watch_admission(self.admission)

    def add(self, name: str, pool: Pool, description: Description) -> None:
        """Adds a model. `pool` has been opened, which returned the `Description`."""
        model = Model(name, pool, description, self.limits, self.metrics)
        self._models[name] = model
        self.metrics.watch_queue(name, model.queue)

    async def close(self) -> None:
        """Ends all queues; requests that wait are not computed."""
        for model in self._models.values():
            await model.queue.close()

    def check_ready(self, model: Model | None = None) -> None:
        """Raises `Unavailable` unless requests are accepted and a worker of the model can compute.

        Without `model`, each model needs such a worker.
        """
        models = self._models.values() if model is None else [model]
        ready = [one.pool.ready for one in models]
        if self.admission.draining or not ready or not all(ready):
            raise Unavailable("The service is shutting down, or a model has no live worker.")

    def names(self) -> list[str]:
        """Returns the names of the models, sorted."""
        return sorted(self._models)

    def get(self, name: str, version: str = "") -> Model:
        """Returns a model; raises `Unknown` if there is none of this name and version."""
        model = self._models.get(name)
        if model is None:
            raise Unknown(
                f"There is no model {shorten(name)}. There are: {', '.join(self.names())}."
            )
        served = model.description.version
        if version not in ("", served):
            raise Unknown(f"{name} has no version {shorten(version)}, but {served!r}.")
        return model

    @contextlib.contextmanager
    def request(self, protocol: str, client: str = "") -> Iterator[Record]:
        """Counts and logs a request of a client, whatever its outcome; yields its `Record`.

        Raises:
            Unavailable: the service is shutting down.
        """
        record = Record(protocol, self.admission, client)
        try:
            with self.admission.count_request():
                yield record
        except Refusal as refusal:
            record.status = refusal.status
            raise
        except asyncio.CancelledError:
            record.status = 499  # the client has gone
            raise
        except BaseException:  # panics of libraries too: logged, counted, answered by the protocol
            record.status = 500
            logger.exception("a request has failed")
            raise
        finally:
            record.free(record.buffered)
            self.metrics.request_done(record)

    async def answer(
        self,
        record: Record,
        model: Model,
        items: Lines,
        options: Options = None,
        seconds: float | None = None,
        receive: Receive | None = None,
    ) -> list[Any]:
        """Returns the results of the lines of a request. The caller has checked their number.

        Args:
            record: from `request`.
            model, items, options: of the request. A glossary applies to each line.
            seconds: float, the deadline that the client sets, or None.
            receive: as in `LineQueue.submit`.

        Returns:
            The results, one per line.
        """
        if options:
            options = await by_line(items, options, model.description.options)
        most = self.limits.deadline_seconds
        deadline = asyncio.get_running_loop().time() + min(
            most, most if seconds is None else max(0.0, seconds)
        )
        record.model = model.name
        record.lines += len(items)
        request = await model.queue.submit(items, options, deadline, receive, record.client)
        record.tokens += request.tokens
        record.waited = max(record.waited, request.waited)
        return request.results

    async def stream(
        self,
        record: Record,
        model: Model,
        items: Lines,
        options: Options = None,
        seconds: float | None = None,
    ) -> AsyncGenerator[Any]:
        """Yields the parts of a stream, then its result; see `Engine.run_stream`.

        Close the iterator to end the work. Takes the arguments of `answer`; there is one item.
        """
        parts: asyncio.Queue[Any] = asyncio.Queue()
        answering = asyncio.ensure_future(
            self.answer(record, model, items, options, seconds, parts.put_nowait)
        )
        answering.add_done_callback(lambda _: parts.put_nowait(None))
        try:
            while (part := await parts.get()) is not None:
                yield part
            (result,) = await answering
            yield result
        finally:
            answering.cancel()

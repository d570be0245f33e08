"""Pools of workers, which compute the batches of a model: `Pool`, and the one in this process.

In this process a worker is a thread, and ONNX Runtime releases the GIL while it computes. The pool
of `ray_pool` has the same methods, so that queue and protocols do not differ.
"""

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any, Protocol

from keras_transformer.export.runtime.runner import Work
from keras_transformer.export.serving.engine import BatchResult, Description, Engine
from keras_transformer.export.serving.line_queue import Lines, Measure, Options, make_measure
from keras_transformer.types import StrPath


class Pool(Protocol):
    """Computes the batches of one model.

    Attributes:
        workers: int, batches that are computed at the same time.
        batch_tokens: int, tokens of a batch, padding included.
        measure: function from a list of lines to their estimated lengths in tokens.
    """

    workers: int
    batch_tokens: int
    measure: Measure

    @property
    def ready(self) -> bool:
        """Whether a worker can take a batch, now or when it has finished another one."""

    async def open(self) -> Description:
        """Opens the artefact, and returns its `Description`."""

    async def run_batch(self, items: Lines, options: Options = None) -> BatchResult:
        """Computes a batch.

        Raises:
            Invalid: the model does not read such lines.
            WorkerLost: the process of the worker has died.
            Refusal: the computation failed.
        """

    async def run_stream(
        self, prompt: str | bytes | Work, options: Options, emit: Callable[[Any], bool]
    ) -> BatchResult:
        """Continues a prompt or transcribes sound, see `Engine.run_stream`.

        Another thread calls `emit`.

        Raises:
            Invalid, Refusal: as in `run_batch`.
        """

    async def close(self) -> None:
        """Ends the workers."""


class LocalPool:
    """A pool of threads in this process.

    Args:
        folder: path of an artefact.
        workers: int, threads.
        batch_tokens, options: as in `Engine`.
    """

    def __init__(
        self, folder: StrPath, workers: int = 1, batch_tokens: int = 512, **options: Any
    ) -> None:
        self.workers: int = workers
        self.batch_tokens: int = batch_tokens
        self.measure: Measure
        self._folder = folder
        self._options = options | {"workers": workers, "batch_tokens": batch_tokens}
        self._engine: Engine | None = None
        self._threads = concurrent.futures.ThreadPoolExecutor(workers, "batch")
        # Batches that still run although the queue has abandoned them.
        self._hanging: set[concurrent.futures.Future[BatchResult]] = set()

    @property
    def ready(self) -> bool:
        return len(self._hanging) < self.workers

    @property
    def in_use(self) -> Description:
        """The `Description` of the artefact in use."""
        return self._engine.describe()

    async def open(self) -> Description:
        self._engine = await asyncio.to_thread(Engine, self._folder, **self._options)
        self.measure = await asyncio.to_thread(make_measure, self._folder)
        return self._engine.describe()

    async def run_batch(self, items: Lines, options: Options = None) -> BatchResult:
        return await self._run(self._engine.run_batch, items, options)

    async def run_stream(
        self, prompt: str | bytes | Work, options: Options, emit: Callable[[Any], bool]
    ) -> BatchResult:
        return await self._run(self._engine.run_stream, prompt, options, emit)

    async def _run(self, function: Callable[..., BatchResult], *arguments: Any) -> BatchResult:
        batch = self._threads.submit(function, *arguments)
        try:
            return await asyncio.wrap_future(batch)
        except asyncio.CancelledError:
            if batch.running():
                self._hanging.add(batch)
                batch.add_done_callback(self._hanging.discard)
            raise

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._engine is not None:
            self._engine.close()

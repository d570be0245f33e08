"""Pools of workers, which compute the batches of a model: in this process, or on Ray.

Both have the same methods, so that queue and protocols do not differ. In this process a worker is a
thread, and ONNX Runtime releases the GIL while it computes. On Ray a worker is a thread of a
replica, a process that Ray starts on this machine or another one. The pool replaces dead replicas.
"""

import asyncio
import concurrent.futures
import logging
import pathlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from keras_transformer.export.serving.engine import (
    BatchResult,
    Description,
    Engine,
    StreamPart,
    Work,
)
from keras_transformer.export.serving.line_queue import Lines, Measure, Options, make_measure
from keras_transformer.export.serving.refusals import FAILED, Invalid, Refusal, WorkerLost
from keras_transformer.startup import SERVES
from keras_transformer.types import StrPath

logger: logging.Logger = logging.getLogger("keras_transformer.serving")
HEARTBEAT_SECONDS = 1.0  # between two signs of life of a replica
LOST_AFTER_SECONDS = 20.0  # without a sign of life: the process was stopped, or its machine is gone
OPENING_SECONDS = 300.0  # that a replica may take to open its artefact
RESTART_SECONDS = 5.0  # between two attempts to start a replica


class Pool(Protocol):
    """Computes the batches of one model.

    Attributes:
        workers: int, batches that are computed at the same time.
        batch_tokens: int, tokens of a batch, padding included.
        measure: function from a list of lines to their estimated lengths in tokens.
        ready: bool, whether a worker can take a batch, now or when it has finished another one.
    """

    workers: int
    batch_tokens: int
    measure: Measure

    @property
    def ready(self) -> bool: ...

    async def open(self) -> Description:
        """Opens the artefact, and returns its `Description`."""
        ...

    async def run_batch(self, items: Lines, options: Options = None) -> BatchResult:
        """Computes a batch.

        Raises:
            Invalid: the model does not read such lines.
            WorkerLost: the process of the worker has died.
            Refusal: the computation failed.
        """
        ...

    async def run_stream(
        self, prompt: str | bytes | Work, options: Options, emit: Callable[[StreamPart], bool]
    ) -> BatchResult:
        """Continues a prompt or transcribes sound, see `Engine.run_stream`.

        Another thread calls `emit`.

        Raises:
            Invalid, Refusal: as in `run_batch`.
        """
        ...

    async def close(self) -> None:
        """Ends the workers."""
        ...


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
        self._folder, self._options = folder, options
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
        return await asyncio.to_thread(self._open)

    def _open(self) -> Description:
        sizes = {"workers": self.workers, "batch_tokens": self.batch_tokens}
        self._engine = Engine(self._folder, **sizes, **self._options)
        self.measure = make_measure(self._folder)
        return self._engine.describe()

    async def run_batch(self, items: Lines, options: Options = None) -> BatchResult:
        return await self._run(self._engine.run_batch, items, options)

    async def run_stream(
        self, prompt: str | bytes | Work, options: Options, emit: Callable[[StreamPart], bool]
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


class RayPool:
    """A pool of replicas: processes that Ray starts, each with an engine.

    A new replica replaces one that dies, gives no sign of life for `LOST_AFTER_SECONDS`, or still
    computes when its `run_batch` is cancelled.

    Args:
        ray: the module, with a connection to a cluster.
        folder: path of an artefact, the same on each machine of the cluster.
        replicas: int, processes.
        gpus: float, GPUs of each process; below 1, processes share a GPU.
        workers: int, threads of each process that compute batches.
        batch_tokens, options: as in `Engine`.
    """

    def __init__(
        self,
        ray: ModuleType,
        folder: StrPath,
        replicas: int = 1,
        gpus: float = 0,
        workers: int = 1,
        batch_tokens: int = 512,
        **options: Any,
    ) -> None:
        self.workers: int = replicas * workers
        self.batch_tokens: int = batch_tokens
        self.measure: Measure
        self._ray, self._replicas, self._threads = ray, replicas, workers
        self._folder = str(pathlib.Path(folder).resolve())
        self._options = options | {"workers": workers, "batch_tokens": batch_tokens}
        self._actor = ray.remote(Engine).options(
            num_cpus=0,  # `threads` and `workers` decide how many cores are used
            memory=1 + sum(path.stat().st_size for path in pathlib.Path(folder).iterdir()),
            num_gpus=gpus,
            scheduling_strategy="SPREAD",
            max_concurrency=workers + 1,  # one thread is left for signs of life
            runtime_env={"env_vars": {SERVES: "1"}},  # no framework is imported
        )
        self._alive: set[Any] = set()
        # Each actor, once for each batch that it can take; dead actors are skipped later.
        self._idle: asyncio.Queue[Any] = asyncio.Queue()
        self._watching: list[asyncio.Task[None]] = []

    @property
    def ready(self) -> bool:
        return bool(self._alive)

    async def open(self) -> Description:
        self.measure = await asyncio.to_thread(make_measure, self._folder)
        try:
            actors = await asyncio.gather(*(self._start() for _ in range(self._replicas)))
        except TimeoutError as error:
            raise RuntimeError(f"A replica of {self._folder} did not open.") from error
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().rpartition("\n")[2]
            raise RuntimeError(f"A replica of {self._folder} did not open: {reason}") from error
        self._watching = [asyncio.create_task(self._watch(actor)) for actor in actors]
        return await actors[0].describe.remote()

    async def run_batch(self, items: Lines, options: Options = None) -> BatchResult:
        while (actor := await self._idle.get()) not in self._alive:
            pass
        batch = asyncio.wrap_future(actor.run_batch.remote(items, options).future())
        batch.add_done_callback(lambda batch: self._finish(actor, batch))
        try:
            return await asyncio.shield(batch)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, Refusal):
                raise error.cause from None
            logger.exception("a replica has failed")
            raise Refusal(FAILED) from error
        except self._ray.exceptions.RayError as error:
            self._alive.discard(actor)  # It gets no other batch; `_watch` replaces it.
            raise WorkerLost("A replica died while computing the request.") from error
        except asyncio.CancelledError:
            if not batch.done():  # It takes longer than any request may.
                self._alive.discard(actor)
                self._ray.kill(actor)
            raise

    async def run_stream(
        self, prompt: str | bytes | Work, options: Options, emit: Callable[[StreamPart], bool]
    ) -> BatchResult:
        raise Invalid(
            "Replicas neither stream nor transcribe files. Serve the model without replicas."
        )

    async def close(self) -> None:
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        for actor in self._alive:
            self._ray.kill(actor)

    async def _start(self) -> Any:
        """Starts a replica, and waits until it has opened the artefact."""
        actor = self._actor.remote(self._folder, **self._options)
        try:
            async with asyncio.timeout(OPENING_SECONDS):
                await actor.describe.remote()
        except BaseException:
            self._ray.kill(actor)
            raise
        self._alive.add(actor)
        for _ in range(self._threads):
            self._idle.put_nowait(actor)
        return actor

    async def _watch(self, actor: Any) -> None:
        """Replaces a replica, and its successors, when they die."""
        while True:
            try:
                await asyncio.sleep(HEARTBEAT_SECONDS)
                async with asyncio.timeout(LOST_AFTER_SECONDS):
                    await actor.describe.remote()
            except (TimeoutError, self._ray.exceptions.RayError):
                self._alive.discard(actor)
            if actor not in self._alive:
                logger.warning("a replica of %s is lost", self._folder)
                self._ray.kill(actor)
                actor = await self._restart()

    async def _restart(self) -> Any:
        while True:
            try:
                return await self._start()
            except (TimeoutError, self._ray.exceptions.RayError):
                logger.exception("a replica of %s does not start", self._folder)
                await asyncio.sleep(RESTART_SECONDS)

    def _finish(self, actor: Any, batch: asyncio.Future[BatchResult]) -> None:
        if not batch.cancelled():
            batch.exception()  # else asyncio logs the error of an abandoned batch
        self._idle.put_nowait(actor)

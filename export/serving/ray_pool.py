"""Replicas on Ray: the `Pool` of several processes, on this machine or others. It needs Ray.

A worker is a thread of a replica, a process that Ray starts. The pool replaces dead replicas.
"""

import asyncio
import contextlib
import functools
import logging
import os
import pathlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from keras_transformer.export.ray_cluster import running_ray
from keras_transformer.export.runtime.runner import Work
from keras_transformer.export.serving.engine import BatchResult, Description, Engine
from keras_transformer.export.serving.line_queue import Lines, Measure, Options, make_measure
from keras_transformer.export.serving.pools import Pool
from keras_transformer.export.serving.refusals import FAILED, Invalid, Refusal, WorkerLost
from keras_transformer.startup import SERVES
from keras_transformer.types import StrPath

logger: logging.Logger = logging.getLogger("keras_transformer.serving")
HEARTBEAT_SECONDS = 1.0  # between two signs of life of a replica
LOST_AFTER_SECONDS = 20.0  # without a sign of life: the process was stopped, or its machine is gone
OPENING_SECONDS = 300.0  # that a replica may take to open its artefact
RESTART_SECONDS = 5.0  # between two attempts to start a replica
HOW_TO_INSTALL = "pip install ray"


@contextlib.contextmanager
def open_replicas(address: str | None) -> Iterator[Callable[..., Pool]]:
    """Connects to a cluster within the block, and yields a function that makes its pools.

    Args:
        address: str, of a running cluster. `None` starts one on this machine.

    Yields:
        `RayPool`, without its first argument.
    """
    # By default Ray's workers give way to every other process of the machine.
    os.environ.setdefault("RAY_worker_niceness", "0")
    with running_ray(address or "local") as ray:
        yield functools.partial(RayPool, ray)


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
        self, prompt: str | bytes | Work, options: Options, emit: Callable[[Any], bool]
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

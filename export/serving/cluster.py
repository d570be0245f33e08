"""Ray Serve: started, with one deployment for each artefact, and asked through handles.

The doors are in the process of the command and not behind Ray Serve's proxy. On two cores of an AMD
EPYC, beside other work, an empty answer passed the proxy 114 times a second for one client and 153
times for sixteen; uvicorn in this process gave it 2,881 and 3,461 times. Only batches of lines pass
Ray, so that its few milliseconds a call are shared by all requests of a batch.
"""

import asyncio
import contextlib
import logging
import os
import pathlib

from keras_transformer.export.serving.measure import make_measure
from keras_transformer.export.serving.refusals import Refusal, Unavailable
from keras_transformer.export.serving.replica import LOOPBACK, Replica

# How often a batch is sent again where the process that had it has died.
TRIES = 4
# Ray reads these when its processes start. Its controller looks ten times a second for work, which
# took up to 8 % of a core, and its workers make room for every other process of the machine. A call
# passes Ray's core, with two messages for an answer, unless Serve is told to use gRPC: 7 ms of
# processor time for a batch, and then 4. And gRPC wakes all event loops of a process for a message
# to one of them: so the doors' is the only one there, and Serve looks for a replica in it.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "1",
    "RAY_worker_niceness": "0",
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
}
OBJECT_STORE = 80 * 2**20  # batches of lines hardly use it


class MissingRay(ImportError):
    """Ray is not installed."""


def imported_ray(local):
    """Ray and Serve. `local`: nothing of Ray's may listen beyond this machine.

    Raises:
        MissingRay: it is not installed.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if local:
        os.environ.update(LOOPBACK)
    try:
        import ray
        from ray import serve
    except ImportError as error:
        raise MissingRay(
            f"The service needs {error.name}, which is not installed here. Install it with: "
            "pip install 'keras-transformer-onnx[ray]'"
        ) from error
    return ray, serve


@contextlib.contextmanager
def running(address=None):
    """Ray Serve, without its proxy, from begin to end of the block.

    Args:
        address: of a Ray cluster that runs already, as `ray.init` takes it. Defaults to `None`: one
            on this machine, which ends with the block.

    Yields:
        The module `ray.serve`.
    """
    ray, serve = imported_ray(local=address is None)
    options = {"configure_logging": False, "log_to_driver": False, "namespace": "serve"}
    if address is None:
        # Deployments say how many threads they take; Ray's own bookkeeping of cores is not used.
        own = {"num_cpus": 64, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
        options |= own
    ray.init(address, **options)
    try:
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        serve.start(proxy_location="Disabled")
        yield serve
    finally:
        if address is None:
            with contextlib.suppress(Exception):  # it may be gone already
                serve.shutdown()
        ray.shutdown()


def deploy(serve, name, folder, *, replicas=1, gpus=0, workers=1, batch_tokens=512, **options):
    """Starts the replicas of an artefact, and waits until they answer.

    Args:
        serve: from `running`.
        name: str, of the model.
        folder: of the artefact, at the same path on each machine of the cluster.
        replicas: int, processes that serve it.
        gpus: float, GPUs for each of them; a part of one lets replicas share it.
        workers, batch_tokens, options: as `Replica` takes them.

    Returns:
        `Replicas`.

    Raises:
        RuntimeError: they do not come up; says why.
    """
    deployment = serve.deployment(
        Replica,
        name=name,
        num_replicas=replicas,
        max_ongoing_requests=workers + 1,  # batches, and a question
        ray_actor_options={"num_cpus": 1 / 64, "num_gpus": gpus},
        health_check_period_s=1,
        graceful_shutdown_timeout_s=5,
        graceful_shutdown_wait_loop_s=0.2,
        logging_config={"enable_access_log": False},  # else a line on disk for each batch
    )
    options |= {"workers": workers, "batch_tokens": batch_tokens}
    bound = deployment.bind(str(pathlib.Path(folder).resolve()), **options)
    handle = serve.run(bound, name=name, route_prefix=None, blocking=False)
    return Replicas(handle, make_measure(folder), replicas * workers, batch_tokens)


class Replicas:
    """The replicas of one artefact, to be asked by a coroutine.

    Args:
        handle: Ray Serve's handle of the deployment.
        measure: function of a list of lines: a guess of their lengths.
        calls: int, batches that they compute at the same time.
        batch_tokens: int, tokens of a batch; up to twice as many where many lines wait.
    """

    def __init__(self, handle, measure, calls, batch_tokens):
        self._handle, self.measure = handle, measure
        self.calls, self.batch_tokens = calls, batch_tokens

    async def answer(self, items, seed=None):
        """The `Sent` of a batch. A batch whose replica dies is sent to another one.

        Raises:
            Unavailable: no replica answers.
            Refusal: the replica has failed at it.
        """
        return await self._ask(self._handle.answer, items, seed)

    async def describe(self):
        """The `Description` of what they serve."""
        return await self._ask(self._handle.describe)

    async def _ask(self, method, *arguments):
        from ray.exceptions import RayError, RayTaskError

        for tried in range(TRIES):
            try:
                return await method.remote(*arguments)
            except RayTaskError as error:
                raise Refusal(f"A replica has failed: {error.cause!r}") from error
            except RayError as error:  # its process has died, or cannot be reached
                reason = error
                await asyncio.sleep(0.1 * 2**tried)
        raise Unavailable(
            f"No replica answers ({type(reason).__name__}). Repeat the request later."
        ) from reason

"""Ray Serve: started, with one deployment for each artefact, whose processes it watches.

The doors are in the process of the command and not behind Ray Serve's proxy. On two cores of an AMD
EPYC, beside other work, an empty answer passed the proxy 114 times a second for one client and 153
times for sixteen; uvicorn in this process gave it 2,881 and 3,461 times. Nor do batches pass Ray:
`workers` says how they reach the replicas.
"""

import contextlib
import logging
import os
import pathlib
import secrets

from keras_transformer.export.serving.measure import make_measure
from keras_transformer.export.serving.replica import LOOPBACK, Replica
from keras_transformer.export.serving.workers import Workers
from keras_transformer.startup import SERVES

# Ray reads these when its processes start. Its controller looks ten times a second for work, which
# took up to 8 % of a core, and its workers make room for every other process of the machine.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "1",
    "RAY_worker_niceness": "0",
}
OBJECT_STORE = 80 * 2**20  # hardly used


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
        The module `ray.serve`; the address of this machine for those where replicas are; and a dict
        for `deploy`: what is in it ends with the block, what others have deployed goes on.
    """
    ray, serve = imported_ray(local=address is None)
    options = {"configure_logging": False, "log_to_driver": False, "namespace": "serve"}
    if address is None:
        # Deployments say how many threads they take; Ray's own bookkeeping of cores is not used.
        own = {"num_cpus": 64, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
        options |= own
    # Without an address Ray would take a cluster that happens to run on this machine.
    ray.init(address or "local", **options)
    deployed = {}
    try:
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        serve.start(proxy_location="Disabled")
        yield serve, "127.0.0.1" if address is None else ray.util.get_node_ip_address(), deployed
    finally:
        with contextlib.suppress(Exception):  # it may be gone already
            if address is None:
                serve.shutdown()
            else:
                _delete(serve, deployed)
        ray.shutdown()


def _delete(serve, deployed):
    """Ends what was deployed, but for names that another service has taken meanwhile."""
    for name, own in deployed.items():
        found = serve.status().applications.get(name)
        if found and own in found.deployments:
            serve.delete(name, _blocking=False)  # Ray goes on with it by itself


def deploy(place, name, folder, *, replicas=1, gpus=0, workers=1, batch_tokens=512, **options):
    """Starts the replicas of an artefact, and waits until they answer.

    Args:
        place: from `running`.
        name: str, of the model.
        folder: of the artefact, at the same path on each machine of the cluster.
        replicas: int, processes that serve it.
        gpus: float, GPUs for each of them; a part of one lets replicas share it.
        workers, batch_tokens, options: as `Replica` takes them.

    Returns:
        `Workers`, to be asked in one event loop.

    Raises:
        RuntimeError: they do not come up; says why.
    """
    serve, host, deployed = place
    made = Workers(replicas * workers, make_measure(folder), batch_tokens, host)
    deployed[name] = f"{name}-{secrets.token_hex(4)}"  # no other service's
    deployment = serve.deployment(
        Replica,
        name=deployed[name],
        num_replicas=replicas,
        ray_actor_options={
            "num_cpus": 1 / 64,
            "num_gpus": gpus,
            # No framework is imported, even if one is installed.
            "runtime_env": {"env_vars": {SERVES: "1"}},
        },
        health_check_period_s=1,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=5,
        graceful_shutdown_wait_loop_s=0.2,
        logging_config={"enable_access_log": False},  # else a line on disk for each batch
    )
    options |= {"workers": workers, "batch_tokens": batch_tokens, "doors": (made.address, made.key)}
    bound = deployment.bind(str(pathlib.Path(folder).resolve()), **options)
    serve.run(bound, name=name, route_prefix=None, blocking=False)
    return made

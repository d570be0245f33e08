"""A service: artefacts by name, their replicas, and the doors."""

import asyncio
import contextlib
import dataclasses
import gc
import ipaddress
import os
import re
import socket
import sys

from keras_transformer.export.artefact.reader import read_task
from keras_transformer.export.serving import cluster
from keras_transformer.export.serving.limits import Limits, Refusal

# Seconds in which a worker must come to the doors once its replica has started.
START = 60.0
MOST = 1000  # replicas, threads, workers


@dataclasses.dataclass(frozen=True)
class Served:
    """An artefact, and with what it is served.

    Args:
        folder: str or path, what `export_onnx` wrote. It may be replaced while it is served.
        replicas: int, processes. Defaults to 1.
        gpus: float, GPUs for each replica, for Ray to find a place for it. Defaults to 0.
        providers: as in `Translator`.
        threads, workers: int, threads of a batch, and batches that a replica computes at the same
            time. Defaults: the cores of the machine, shared by the replicas, are workers of one
            thread each, which take the least processor time for a line. With `workers=1` all of
            a replica's cores work on one batch, and a large model answers a lone request sooner.
            On the CPU each worker has its own copy of the weights, as far as 1 GiB of them goes.
            With `gpus` there is one worker.
        batch_tokens: int, tokens of a batch, which one worker computes; up to twice as many where
            many lines wait. Defaults to 512: of a hundred lines larger batches have more padding.

    Example:

    >>> Served("out/onnx", replicas=2, threads=1)
    Served(folder='out/onnx', replicas=2, gpus=0, providers=None, threads=1, \
workers=None, batch_tokens=512)
    """

    folder: str
    replicas: int = 1
    gpus: float = 0
    providers: list | None = None
    threads: int | None = None
    workers: int | None = None
    batch_tokens: int = 512

    def __post_init__(self):
        for name in ("replicas", "threads", "workers", "batch_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` must be at least 1, got {value}.")
            if value is not None and name != "batch_tokens" and value > MOST:
                raise ValueError(f"`{name}` must be at most {MOST}, got {value}.")
        if not self.gpus >= 0:
            raise ValueError(f"`gpus` must be 0 or more, got {self.gpus}.")

    def shares(self, cores):
        """Threads and workers of each replica on a machine of so many cores."""
        share = max(1, cores // self.replicas)
        workers = self.workers
        if workers is None:
            workers = 1 if self.gpus else max(1, share // (self.threads or 1))
        return self.threads or max(1, share // workers), workers


def serve(
    models,
    host="127.0.0.1",
    port=8080,
    grpc_port=None,
    *,
    limits=None,
    log=sys.stdout,
    drain_seconds=30.0,
    ray_address=None,
    listening=None,
    allowed_hosts=(),
):
    """Serves artefacts until the process gets SIGTERM or SIGINT, and answers what it has taken in.

    Args:
        models: dict from names to `Served`.
        host: str, the address to listen at; only this machine reaches the default.
        port: int, of HTTP.
        grpc_port: int, of gRPC. Defaults to the next one.
        limits: `Limits`.
        log: file that gets a line of JSON for each request, or None.
        drain_seconds: float, the time that open requests have at the end.
        ray_address: of a Ray cluster that runs already. Defaults to a new one on this machine.
        listening: function of both ports, called when requests are taken.
        allowed_hosts: list of str. Additional host names to accept in the headers `Host` and
            `Origin`. A service at a loopback address takes loopback names only;
            a page in a browser must come from the same host and port.

    Returns:
        Whether all requests that were taken in were answered.

    Raises:
        MissingRay: the extra `ray` is not installed.
        ArtefactError: a folder is no artefact.
        ValueError: an argument is wrong.
        OSError, RuntimeError: a port is taken, or a replica does not come up.

    Example:

    >>> serve({"en-de": Served("out/onnx")})  # doctest: +SKIP
    True
    """
    if not drain_seconds >= 0:
        raise ValueError(f"`drain_seconds` must be 0 or more, got {drain_seconds}.")
    allowed_hosts = [_host_name(name) for name in allowed_hosts]
    for served in models.values():  # before Ray is started, which takes a while
        read_task(served.folder)
    if grpc_port is None:
        grpc_port = port + 1 if port else 0
    with (
        _listen(host, port) as opened,
        _is_free(host, grpc_port),  # told before Ray starts; gRPC opens its port itself
        cluster.running(ray_address) as place,
    ):
        workers = {name: _deploy(place, name, served) for name, served in models.items()}
        return asyncio.run(
            _serve(workers, limits, log, opened, grpc_port, drain_seconds, listening, allowed_hosts)
        )


def _host_name(text):
    """A host name in small letters; `ValueError` where a request can never have it."""
    name = text.lower().removesuffix(".")
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(name.removeprefix("[").removesuffix("]")))
    if not re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", name):
        raise ValueError(
            f"`allowed_hosts` has {text[:100]!r}. Pass host names without scheme and port, such as "
            "'proxy.example'."
        )
    return name


def _listen(host, port):
    """A socket that listens at an address; `OSError` where the port is taken."""
    if not 0 <= port < 2**16:
        raise ValueError(f"A port is a number from 0 to 65535, got {port}.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)


def _is_free(host, port):
    """A block in which a port was free; `OSError` where it is taken."""
    _listen(host, port).close()
    return contextlib.nullcontext()


def _deploy(place, name, served):
    threads, workers = served.shares(os.cpu_count() or 1)
    options = {"providers": served.providers, "threads": threads, "workers": workers}
    return cluster.deploy(
        place,
        name,
        served.folder,
        replicas=served.replicas,
        gpus=served.gpus,
        batch_tokens=served.batch_tokens,
        **options,
    )


async def _serve(workers, limits, log, opened, grpc_port, drain_seconds, listening, hosts):
    # Here, because they need packages of the extra.
    from keras_transformer.export.serving.doors import serve_doors, stopped_by_signals
    from keras_transformer.export.serving.metrics import Metrics
    from keras_transformer.export.serving.models import Models

    metrics, stop = Metrics(log), asyncio.Event()
    models = Models(limits or Limits(), metrics)
    with stopped_by_signals(stop):
        try:
            for name, some in workers.items():
                await _add(models, name, some)
            # Else Python looks through all of its modules again and again, between requests.
            gc.collect()
            gc.freeze()
            return await serve_doors(
                models, opened, grpc_port, stop, drain_seconds, listening, hosts
            )
        finally:
            gc.unfreeze()
            metrics.close()
            for some in workers.values():
                await some.close()


async def _add(models, name, workers):
    """Adds a model; raises `RuntimeError` where no worker of it comes."""
    try:
        async with asyncio.timeout(START):
            await models.add(name, workers)
    except (TimeoutError, Refusal) as error:
        raise RuntimeError(
            f"The replicas of {name} have started, but in {START:.0f} s none of their workers "
            f"answered at {workers.address}. Their machines must reach that address."
        ) from error

"""A service: models by name, their pools, and the HTTP server, until a signal."""

import asyncio
import contextlib
import dataclasses
import gc
import ipaddress
import os
import re
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from keras_transformer.export.artefact.reader import read_task
from keras_transformer.export.serving.clients import Clients, read_keys, read_proxies
from keras_transformer.export.serving.limits import Limits
from keras_transformer.export.serving.pools import LocalPool, Pool
from keras_transformer.export.serving.ray_pool import HOW_TO_INSTALL, open_replicas
from keras_transformer.export.serving.request_log import Output
from keras_transformer.startup import install
from keras_transformer.types import StrPath

MAX_WORKERS = 1000  # also of replicas and threads


class MissingExtra(ImportError):
    """A package that the service needs is not installed."""


@dataclasses.dataclass(frozen=True)
class ServedArtefact:
    """An artefact, and how it is served.

    Args:
        folder: path of the folder that `export_onnx` wrote. It may be replaced while it is served.
        replicas: int, processes that Ray starts for the artefact. Defaults to `None`: the process
            of the service computes all batches, and Ray is not needed.
        gpus: float, GPUs that Ray gives to each replica. Defaults to 0.
        providers: as in `Translator`.
        threads, workers: int, threads of a batch, and batches that a process computes at the same
            time. By default, each core is a worker of one thread, which takes the least processor
            time per line, and replicas share the cores. With `workers=1`, all cores of a process
            compute one batch, and a large model answers a lone request sooner. On the CPU, each
            worker has its own copy of the weights, up to 1 GiB in all. With `gpus` there is one
            worker.
        batch_tokens: int, tokens of a batch, which one worker computes; up to twice as many if many
            lines wait. Defaults to 512: for a hundred lines, larger batches have more padding.

    Example:

    >>> ServedArtefact("out/onnx", replicas=2, threads=1)
    ServedArtefact(folder='out/onnx', replicas=2, gpus=0, providers=None, threads=1, \
workers=None, batch_tokens=512)
    """

    folder: StrPath
    replicas: int | None = None
    gpus: float = 0
    providers: list[str] | None = None
    threads: int | None = None
    workers: int | None = None
    batch_tokens: int = 512

    def __post_init__(self) -> None:
        for name in ("replicas", "threads", "workers", "batch_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` must be at least 1, got {value}.")
            if value is not None and name != "batch_tokens" and value > MAX_WORKERS:
                raise ValueError(f"`{name}` must be at most {MAX_WORKERS}, got {value}.")
        if not self.gpus >= 0:
            raise ValueError(f"`gpus` must be 0 or more, got {self.gpus}.")

    @property
    def is_replicated(self) -> bool:
        """Whether Ray starts the processes of this artefact."""
        return self.replicas is not None or self.gpus > 0

    def shares(self, cores: int) -> tuple[int, int]:
        """Returns the numbers of threads and workers of each process, on a machine with `cores`."""
        share = max(1, cores // (self.replicas or 1))
        workers = self.workers
        if workers is None:
            workers = 1 if self.gpus else max(1, share // (self.threads or 1))
        return self.threads or max(1, share // workers), workers


def serve(
    models: Mapping[str, ServedArtefact],
    host: str = "127.0.0.1",
    port: int = 8080,
    *,
    limits: Limits | None = None,
    log: Output | None = sys.stdout,
    drain_seconds: float = 30.0,
    ray_address: str | None = None,
    listening: Callable[[int], None] | None = None,
    allowed_hosts: Iterable[str] = (),
    api_keys: StrPath | None = None,
    trusted_proxies: Iterable[str] = (),
    ssl_certfile: StrPath | None = None,
    ssl_keyfile: StrPath | None = None,
) -> bool:
    """Serves artefacts until the process gets SIGTERM or SIGINT, then answers accepted requests.

    One process does all work, unless a model has `replicas` or `gpus`, or `ray_address` is given. A
    crash of native code then ends the service: let systemd or Kubernetes restart it.

    Args:
        models: dict from names to `ServedArtefact`.
        host: str, the address to listen at; only this machine reaches the default.
        port: int; 0 for any free one.
        limits: `Limits`.
        log: file that gets a line of JSON for each request, or None.
        drain_seconds: float, the time that open requests have at the end.
        ray_address: address of a running Ray cluster, which then runs replicas of all models.
        listening: function of the port, called when requests are accepted.
        allowed_hosts: list of str. Additional host names to accept in the headers `Host` and
            `Origin`. A service at a loopback address accepts loopback names only;
            a page in a browser must come from the same host and port.
        api_keys: path of a file with a key in each line, and a name after it if you like. Requests
            then need a key, apart from those for health and metrics. Defaults to `None`: no keys.
        trusted_proxies: list of str, addresses or networks of proxies whose header
            `X-Forwarded-For` names the client. Clients share the service fairly: by their keys, or
            else by their addresses.
        ssl_certfile: path of a certificate chain in PEM, for HTTPS. Defaults to `None`: HTTP.
        ssl_keyfile: path of its private key, if the file of the certificate has none.

    Returns:
        Whether all accepted requests were answered.

    Raises:
        MissingExtra: the extra `service` is not installed, or Ray where it is needed.
        ArtefactError: a folder is not an artefact.
        ValueError: an argument is wrong.
        OSError, RuntimeError: a port is taken, a replica does not start, or an event loop runs
            already, as in a notebook.

    Example:

    >>> serve({"en-de": ServedArtefact("out/onnx")})  # doctest: +SKIP
    True
    """
    _check_no_loop()
    if not drain_seconds >= 0:
        raise ValueError(f"`drain_seconds` must be 0 or more, got {drain_seconds}.")
    allowed_hosts = [_host_name(name) for name in allowed_hosts]
    keys = None if api_keys is None else read_keys(api_keys)
    clients = Clients(keys, read_proxies(trusted_proxies))
    ssl_options = _ssl_options(ssl_certfile, ssl_keyfile)
    for served in models.values():  # before a cluster is started, which takes a while
        read_task(served.folder)
    with _listen(host, port) as opened, _pools(models, ray_address) as pools:
        serving = _serve(
            pools,
            limits or Limits(),
            log,
            clients,
            opened=opened,
            drain_seconds=drain_seconds,
            listening=listening,
            allowed_hosts=allowed_hosts,
            **ssl_options,
        )
        return asyncio.run(serving)


def _check_no_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "The service runs an event loop, and one runs here already, as in a notebook. Start it in "
        "a separate process: python -m keras_transformer.export.serving NAME=FOLDER"
    )


def _host_name(text: str) -> str:
    """Returns a host name in lower case; raises `ValueError` if no request can have it."""
    name = text.lower().removesuffix(".")
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(name.removeprefix("[").removesuffix("]")))
    if not re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", name):
        raise ValueError(
            f"`allowed_hosts` has {text[:100]!r}. Pass host names without scheme and port, such as "
            "'proxy.example'."
        )
    return name


def _ssl_options(certificate: StrPath | None, key: StrPath | None) -> dict[str, StrPath]:
    """Returns uvicorn's options; raises `ValueError` unless it can read both files."""
    if certificate is None:
        if key is not None:
            raise ValueError("`ssl_keyfile` needs `ssl_certfile`. Pass the certificate, too.")
        return {}
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(
            f"`ssl_certfile` and `ssl_keyfile` must be a certificate and its key in PEM: {error}"
        ) from error
    return {"ssl_certfile": certificate} | ({} if key is None else {"ssl_keyfile": key})


def _listen(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at an address; raises `OSError` if the port is taken."""
    if not 0 <= port < 2**16:
        raise ValueError(f"A port is a number from 0 to 65535, got {port}.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)


@contextlib.contextmanager
def _pools(models: Mapping[str, ServedArtefact], address: str | None) -> Iterator[dict[str, Pool]]:
    """Yields the pools of the models; those with replicas use a cluster, at an address if given."""
    replicated = {name for name, served in models.items() if address or served.is_replicated}
    with contextlib.ExitStack() as stack:
        if replicated:
            with _installed(HOW_TO_INSTALL):
                make_replicas = stack.enter_context(open_replicas(address))
        pools: dict[str, Pool] = {}
        for name, served in models.items():
            threads, workers = served.shares(os.cpu_count() or 1)
            options = {
                "workers": workers,
                "batch_tokens": served.batch_tokens,
                "threads": threads,
                "providers": served.providers,
            }
            if name in replicated:
                processes = served.replicas or 1, served.gpus
                pools[name] = make_replicas(served.folder, *processes, **options)
            else:
                pools[name] = LocalPool(served.folder, **options)
        yield pools


@contextlib.contextmanager
def _installed(command: str) -> Iterator[None]:
    """Names the command that installs a package whose import fails within the block."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"The service needs {error.name}, which is not installed here. Install it with: "
            + command
        ) from error


async def _serve(
    pools: dict[str, Pool], limits: Limits, log: Output | None, clients: Clients, **server: Any
) -> bool:
    """Opens the pools, and serves them with `run_server` until a signal."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # until the event loop is closed
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    opening = {name: asyncio.create_task(pool.open()) for name, pool in pools.items()}
    await asyncio.sleep(0)  # Threads open the artefacts while this one imports the server.
    try:
        with _installed(install("service")):
            from keras_transformer.export.serving.front_end import run_server
            from keras_transformer.export.serving.metrics import Metrics
            from keras_transformer.export.serving.models import Models
        metrics = Metrics(log)
        models = Models(limits, metrics, clients)
        for name, pool in pools.items():
            models.add(name, pool, await opening[name])
        # Otherwise, garbage collection visits all modules repeatedly, between requests.
        gc.collect()
        gc.freeze()
        answered = await run_server(models, stop, **server)
        await models.close()
        metrics.close()
        return answered
    finally:
        gc.unfreeze()
        for pool in pools.values():
            await pool.close()

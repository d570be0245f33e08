"""The front end: the HTTP server, from its start to the drain."""

import asyncio
import contextlib
import functools
import socket
import time
from collections.abc import Callable, Sequence

import uvicorn

from keras_transformer.export.serving.app import make_app
from keras_transformer.export.serving.connections import Connection
from keras_transformer.export.serving.models import Models
from keras_transformer.types import StrPath

CLOSING_SECONDS = 5  # at least, for responses that are being sent when the service stops


class _Server(uvicorn.Server):
    """uvicorn's server, which leaves signals to the service."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


async def run_server(
    models: Models,
    stop: asyncio.Event,
    *,
    opened: socket.socket,
    drain_seconds: float = 30.0,
    listening: Callable[[int], None] | None = None,
    allowed_hosts: Sequence[str] = (),
    **ssl_options: StrPath,
) -> bool:
    """Serves models until an event is set, then answers accepted requests.

    Args:
        models: `Models`.
        stop: asyncio.Event.
        opened: socket that listens.
        drain_seconds: float, the time that open requests have after the event.
        listening: function of the port, called when requests are accepted.
        allowed_hosts: host names, as `HeaderCheck` takes them.
        ssl_options: of uvicorn, for HTTPS.

    Returns:
        Whether all requests were answered.
    """
    host, port = opened.getsockname()[:2]
    # The body of a response must not wait 40 ms until its headers are acknowledged. asyncio sets
    # the option only for a socket that was made with the protocol's number.
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    config = uvicorn.Config(
        make_app(models, host, allowed_hosts),
        http=functools.partial(Connection, models.limits),
        ws="none",
        lifespan="off",
        access_log=False,
        proxy_headers=False,
        log_level="error",
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=CLOSING_SECONDS,
        h11_max_incomplete_event_size=models.limits.header_bytes,
        **ssl_options,
    )
    http = _Server(config)
    serving = asyncio.create_task(http.serve([opened]))
    try:
        if listening is not None:
            listening(port)
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([stopped, serving], return_when=asyncio.FIRST_COMPLETED)
        begun = time.monotonic()
        answered = await models.admission.drain(drain_seconds)
        # Slow clients may still read their responses.
        left = drain_seconds - (time.monotonic() - begun)
        config.timeout_graceful_shutdown = max(CLOSING_SECONDS, round(left))
        return answered
    finally:
        http.should_exit = True
        await serving

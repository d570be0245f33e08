"""The HTTP application: all protocols, health, metrics, and one way to refuse."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from keras_transformer.export.serving import http_v2, libretranslate, plain
from keras_transformer.export.serving.bodies import read_body, unless_gone
from keras_transformer.export.serving.limits import FAILED, Refusal
from keras_transformer.export.serving.metrics import Record
from keras_transformer.export.serving.models import Models
from keras_transformer.export.serving.origins import SameOrigin

PROTOCOLS = (http_v2, libretranslate, plain)
Handler = Callable[[Request, bytes, Record], Coroutine[Any, Any, Response]]


def make_app(models: Models, host: str, allowed_hosts: Iterable[str] = ()) -> ASGIApp:
    """Returns the ASGI application of a service.

    Args:
        models: `Models`.
        host: str, the address that the service listens at.
        allowed_hosts: as `SameOrigin` takes them.
    """

    def counted(
        protocol: str, handler: Handler
    ) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Makes an endpoint: counts a request, reads its body, and cancels if the client leaves."""

        async def endpoint(request: Request) -> Response:
            with models.request(protocol) as record:
                try:
                    body = await read_body(request, record, models.limits)
                    with models.admission.computing():
                        leaving = asyncio.ensure_future(request.receive())
                        try:
                            return await unless_gone(leaving, handler(request, body, record))
                        finally:
                            leaving.cancel()
                except ClientDisconnect:
                    record.status = 499
                    return Response(status_code=400)  # No client reads it.

        return endpoint

    async def live(request: Request) -> Response:
        return Response("live\n", media_type="text/plain")

    async def ready(request: Request) -> Response:
        models.check_ready()
        return Response("ready\n", media_type="text/plain")

    async def metrics(request: Request) -> Response:
        return Response(models.metrics.page(), media_type="text/plain; version=0.0.4")

    routes = [Route("/live", live), Route("/ready", ready), Route("/metrics", metrics)]
    for protocol in PROTOCOLS:
        routes += protocol.routes(models, counted)
    return Starlette(
        routes=routes,
        middleware=[Middleware(SameOrigin, host=host, allowed_hosts=allowed_hosts)],
        exception_handlers={Refusal: _refused, HTTPException: _no_route, Exception: _failed},
    )


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers)


async def _refused(request: Request, refusal: Refusal) -> JSONResponse:
    return _error(refusal.status, str(refusal), refusal.headers)


async def _no_route(request: Request, error: HTTPException) -> JSONResponse:
    return _error(error.status_code, f"{error.detail}: no such address.", error.headers)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    return _error(500, FAILED)

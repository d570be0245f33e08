"""The HTTP application: all doors, health, metrics, and one way to refuse."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from keras_transformer.export.serving import http_v2, libretranslate, plain
from keras_transformer.export.serving.bodies import read_body, unless_gone
from keras_transformer.export.serving.limits import FAILED, Refusal, Unavailable
from keras_transformer.export.serving.origins import SameOrigin

DOORS = (http_v2, libretranslate, plain)


def make_app(models, host, allowed_hosts=()):
    """The ASGI application of a service's `Models`.

    Args:
        models: `Models`.
        host: str, the address that the service listens at.
        allowed_hosts: as `SameOrigin` takes them.
    """

    def door(name, handler):
        async def endpoint(request):
            with models.request(name) as record, models.holding() as add:
                try:
                    body = await read_body(request, add, models.limits)
                    with models.answering():
                        return await unless_gone(request.receive, handler(request, body, record))
                except ClientDisconnect:
                    record.status = 499
                    return Response(status_code=400)  # The client has left.

        return endpoint

    async def live(request):
        return Response("live\n", media_type="text/plain")

    async def ready(request):
        if not models.ready:
            raise Unavailable("The service is shutting down, or a model has no live worker.")
        return Response("ready\n", media_type="text/plain")

    async def metrics(request):
        return Response(models.metrics.page(), media_type="text/plain; version=0.0.4")

    own = [Route("/live", live), Route("/ready", ready), Route("/metrics", metrics)]
    return Starlette(
        routes=[*own, *(route for made in DOORS for route in made.routes(models, door))],
        middleware=[Middleware(SameOrigin, host=host, allowed_hosts=allowed_hosts)],
        exception_handlers={Refusal: _refused, HTTPException: _no_route, Exception: _failed},
    )


def _error(status, text, headers=None):
    return JSONResponse({"error": text}, status, headers)


async def _refused(request, refusal):
    return _error(refusal.status, str(refusal), refusal.headers)


async def _no_route(request, error):
    return _error(error.status_code, f"{error.detail}: no such address.", error.headers)


async def _failed(request, error):
    return _error(500, FAILED)

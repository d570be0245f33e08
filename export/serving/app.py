"""The HTTP application: the protocols, health, metrics, and checks of the headers."""

import functools
import ipaddress
import urllib.parse
from collections.abc import Iterable, Mapping
from http import HTTPStatus

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from keras_transformer.export.artefact.messages import shorten
from keras_transformer.export.serving.clients import Clients
from keras_transformer.export.serving.models import Models
from keras_transformer.export.serving.protocols import PROTOCOLS
from keras_transformer.export.serving.refusals import (
    CLOSE,
    FAILED,
    Forbidden,
    HeadersTooLarge,
    Invalid,
    Refusal,
    error_body,
)


def make_app(models: Models, host: str, allowed_hosts: Iterable[str] = ()) -> ASGIApp:
    """Returns the ASGI application of a service.

    Args:
        models: `Models`.
        host: str, the address that the service listens at.
        allowed_hosts: as `HeaderCheck` takes them.
    """

    async def live(request: Request) -> Response:
        return Response("live\n", media_type="text/plain")

    async def ready(request: Request) -> Response:
        models.check_ready()
        return Response("ready\n", media_type="text/plain")

    async def metrics(request: Request) -> Response:
        return Response(models.metrics.page(), media_type="text/plain; version=0.0.4")

    routes = [Route("/live", live), Route("/ready", ready), Route("/metrics", metrics)]
    for protocol in PROTOCOLS:
        routes += protocol.routes(models)
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(
                HeaderCheck,
                models.limits.header_bytes,
                models.clients,
                host=host,
                allowed_hosts=allowed_hosts,
            )
        ],
        exception_handlers={Refusal: _refused, HTTPException: _no_route, Exception: _failed},
    )


def _error(
    path: str, status: int, text: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Returns an error in the protocol's format."""
    return JSONResponse(error_body(path, status, text), status, headers)


async def _refused(request: Request, refusal: Refusal) -> JSONResponse:
    return _error(request.scope["path"], refusal.status, str(refusal), refusal.headers)


async def _no_route(request: Request, error: HTTPException) -> JSONResponse:
    text = f"{error.detail}: no such address."
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        text = f"{request.method} is not allowed here. Use {error.headers['Allow']}."
    return _error(request.scope["path"], error.status_code, text, error.headers)


async def _failed(request: Request, error: Exception) -> JSONResponse:
    return _error(request.scope["path"], 500, FAILED)


class HeaderCheck:
    """ASGI middleware that refuses large headers, missing keys, and pages from other origins.

    It names the client of a request, as `state.client`.

    A page in a browser can send requests to services of the same machine or network. After DNS
    rebinding it can read the responses, too. Its requests have a foreign name in `Host` or
    `Origin`. So a service that listens at a loopback address accepts only loopback names in `Host`.
    `Origin`, if a browser sends it, must be the `Host` of the request.

    Args:
        app: ASGI application.
        header_bytes: int, as in `Limits`. h11 limits headers that come in several packets.
        clients: `Clients`.
        host: str, the address that the service listens at.
        allowed_hosts: host names in lower case that are also accepted, in `Host` and in `Origin`,
            such as the name of a proxy.
    """

    def __init__(
        self,
        app: ASGIApp,
        header_bytes: int,
        clients: Clients,
        host: str,
        allowed_hosts: Iterable[str] = (),
    ) -> None:
        self._app, self._header_bytes, self._clients = app, header_bytes, clients
        self._local, self._allowed = _is_loopback(host), frozenset(allowed_hosts)
        self._check = functools.lru_cache(64)(self._check_origin)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope["headers"]
        size = sum(len(name) + len(value) + len(": \r\n") for name, value in headers)
        try:
            if size + len(scope["raw_path"]) + len(scope["query_string"]) > self._header_bytes:
                raise HeadersTooLarge(
                    f"The headers of a request may have {self._header_bytes} bytes."
                )
            if scope["http_version"] not in ("1.0", "1.1"):
                raise Invalid("The service speaks HTTP/1.1.")
            found = {name: value.decode("latin-1") for name, value in headers}
            if b"content-length" in found and b"transfer-encoding" in found:
                raise Invalid("The request has both Content-Length and Transfer-Encoding.")
            self._check(found.get(b"host"), found.get(b"origin"))
            scope["state"]["client"] = self._clients.identify(scope)
        except Refusal as refusal:
            headers = refusal.headers or CLOSE
            response = _error(scope["path"], refusal.status, str(refusal), headers)
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _check_origin(self, host: str | None, origin: str | None) -> None:
        if host is None and origin is None:
            return  # a health check by HTTP/1.0: browsers send `Host`
        if host is None:
            raise Invalid("The request has an Origin, but no Host.")
        name = _host_name(f"//{host}")
        if self._local and not (_is_loopback(name) or name in self._allowed):
            raise Forbidden(
                f"The service listens on this machine only, and the request asks for the host "
                f"{shorten(name)}. Allow the name with --allow-host."
            )
        if origin is None or origin.partition("://")[2].lower() == host.lower():
            return
        if _host_name(origin) not in self._allowed:
            raise Forbidden(
                f"The request comes from a page of {shorten(origin)}. Allow its host with "
                "--allow-host."
            )


def _host_name(address: str) -> str:
    """Returns the name of a host in lower case, without its port and the dot of its root."""
    try:
        return (urllib.parse.urlsplit(address).hostname or "").removesuffix(".")
    except ValueError:
        return ""


def _is_loopback(name: str) -> bool:
    try:
        if name == "localhost":
            return True
        address = ipaddress.ip_address(name)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    except ValueError:
        return False

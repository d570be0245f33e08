"""Checks the hosts and origins that a request over HTTP names.

A page in a browser can send requests to services of the same machine or network. After DNS
rebinding it can read the answers, too. Its requests show a foreign name in `Host` or `Origin`.
"""

import ipaddress
import urllib.parse

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from keras_transformer.export.serving.limits import Forbidden, Invalid, Refusal, shown


class SameOrigin:
    """ASGI middleware that refuses requests of pages from other origins.

    A service that listens at a loopback address takes only loopback names in `Host`. `Origin`,
    where a browser sends it, must be the `Host` of the request.

    Args:
        app: ASGI application.
        host: str, the address that the service listens at.
        allowed_hosts: host names that are also taken, in `Host` and in `Origin`, such as the name
            of a proxy.
    """

    def __init__(self, app, host: str, allowed_hosts=()):
        self._app, self._allowed = app, {name.lower() for name in allowed_hosts}
        self._local = _is_loopback(host)

    async def __call__(self, scope, receive, send):
        try:
            self._check(Headers(scope=scope))
        except Refusal as refusal:
            answer = JSONResponse({"error": str(refusal)}, refusal.status)
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _check(self, headers):
        hosts = headers.getlist("host")
        if len(hosts) != 1:
            raise Invalid(f"A request has one header Host, not {len(hosts)}.")
        name = _host_name(f"//{hosts[0]}")
        if self._local and not (_is_loopback(name) or name in self._allowed):
            raise Forbidden(
                f"The service listens on this machine only, and the request asks for the host "
                f"{shown(name)}. Allow the name with --allow-host."
            )
        origin = headers.get("origin")
        if origin is None or origin.partition("://")[2].lower() == hosts[0].lower():
            return
        if _host_name(origin) not in self._allowed:
            raise Forbidden(
                f"The request comes from a page of {shown(origin)}. Allow its host with "
                "--allow-host."
            )


def _host_name(address):
    """The name of a host, without its port, in small letters."""
    try:
        return urllib.parse.urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _is_loopback(name):
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False

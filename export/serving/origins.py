"""Checks the hosts and origins that a request over HTTP names.

A page in a browser can send requests to services of the same machine or network. After DNS
rebinding it can read the answers, too. Its requests show a foreign name in `Host` or `Origin`.
"""

import functools
import ipaddress
import urllib.parse

from starlette.responses import JSONResponse

from keras_transformer.export.serving.limits import Forbidden, Invalid, Refusal, shown


class SameOrigin:
    """ASGI middleware that refuses requests of pages from other origins.

    A service that listens at a loopback address takes only loopback names in `Host`. `Origin`,
    where a browser sends it, must be the `Host` of the request.

    Args:
        app: ASGI application.
        host: str, the address that the service listens at.
        allowed_hosts: host names in small letters that are also taken, in `Host` and in `Origin`,
            such as the name of a proxy.
    """

    def __init__(self, app, host: str, allowed_hosts=()):
        self._app, self._allowed = app, frozenset(allowed_hosts)
        self._local = _is_loopback(host)
        self._check = functools.lru_cache(64)(self._check)

    async def __call__(self, scope, receive, send):
        try:
            hosts, origins = (
                tuple(value.decode("latin-1") for name, value in scope["headers"] if name == wanted)
                for wanted in (b"host", b"origin")
            )
            self._check(scope["http_version"], hosts, origins[0] if origins else None)
        except Refusal as refusal:
            answer = JSONResponse({"error": str(refusal)}, refusal.status)
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _check(self, version, hosts, origin):
        if version == "1.0" and not hosts and origin is None:
            return  # of a health check: browsers send `Host`
        if len(hosts) != 1:
            raise Invalid(f"A request has one header Host, not {len(hosts)}.")
        name = _host_name(f"//{hosts[0]}")
        if self._local and not (_is_loopback(name) or name in self._allowed):
            raise Forbidden(
                f"The service listens on this machine only, and the request asks for the host "
                f"{shown(name)}. Allow the name with --allow-host."
            )
        if origin is None or origin.partition("://")[2].lower() == hosts[0].lower():
            return
        if _host_name(origin) not in self._allowed:
            raise Forbidden(
                f"The request comes from a page of {shown(origin)}. Allow its host with "
                "--allow-host."
            )


def _host_name(address):
    """The name of a host in small letters, without its port and the dot of its root."""
    try:
        return (urllib.parse.urlsplit(address).hostname or "").removesuffix(".")
    except ValueError:
        return ""


def _is_loopback(name):
    try:
        if name == "localhost":
            return True
        address = ipaddress.ip_address(name)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    except ValueError:
        return False

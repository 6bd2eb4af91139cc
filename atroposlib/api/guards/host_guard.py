"""Refuse requests that were sent to another name than ours.

A page of anybody may give its own name the address 127.0.0.1 (DNS rebinding) and then talk
to an API on this machine as if it were its own server. The Host header gives it away: it
holds the name of the page. An address cannot be rebound and a name without a dot cannot be
bought (``node017``, the service of a compose file), so those always pass.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
ANY_HOST = "*"
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::\d{0,5})?")


class Hosts:
    """Passes on what names no public host, or an allowed one; all if ``allowed`` is None."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str] | None) -> None:
        self.app = app
        names = None if allowed is None else frozenset(name.lower() for name in allowed)
        self._allowed = None if names is None or ANY_HOST in names else names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._allowed is None or scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == b"host"]
        name = host_name(given[0]) if len(given) == 1 else None
        if name is None:
            refused = _refusal(400, "one well-formed Host header is expected")
        elif name in self._allowed or "." not in name or is_address(name):
            await self.app(scope, receive, send)
            return
        else:
            refused = _refusal(421, f"{name} is no name of this API: add --allow-host {name}")
        if scope["type"] == "http":
            await refused(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})


def host_name(header: bytes) -> str | None:
    """``LocalHost.:8000`` -> ``localhost``; None if it is no host."""
    match = _HOST.fullmatch(header.decode("latin-1").lower())
    return match["name"].removesuffix(".") if match else None


def is_address(name: str) -> bool:
    """Whether it is an IP address as the Host header writes it."""
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _refusal(status: int, detail: str) -> Response:
    body = msgspec.json.encode({"detail": detail, "status": "wrong_host"})
    return Response(body, status, media_type="application/json")

"""Listening sockets, loopback checks and guards against web pages, for every HTTP server.

A web page can reach a server on this machine in two ways. It can give its own name the address
127.0.0.1 (DNS rebinding); the Host header then holds the name of the page. Or it can send the
request from the browser; ``Sec-Fetch-Site``, ``Origin`` or ``Referer`` then name the site.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from atroposlib.errors import ConfigError
from atroposlib.utils.command.signals import on_signals, reset_and_raise
from atroposlib.utils.http_protocol import head_deadline

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")  # as the Host header writes them
ANY_HOST = "*"
STOP_S = 8.0  # from a signal to the end of the process
NO_REPLY = 499  # the client left, or the process stops, before a reply began
# A connection whose peer vanished ends within SILENCE_S. Without that a request waits for its own
# timeout, of minutes, and what was not acknowledged is sent again in pauses of up to two minutes, also
# after a network is back. Calls may be repeated: a connection that ends too early costs one retry.
SILENCE_S = 30
IDLE_S, PROBE_S = 15, 5  # before the first probe of a silent connection, and between two
PROBES = (SILENCE_S - IDLE_S) // PROBE_S
CONNECT_TIMEOUT_S = (
    10.0  # of a new connection, whose first packet is repeated after 1, 3 and 7 s
)
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::\d{0,5})?")


def bind(host: str, port: int, backlog: int | None = None) -> socket.socket:
    """A TCP socket bound to ``host`` and ``port``, so that a taken port fails early.

    Args:
        backlog: start to listen with it; None: the caller does. Until a socket listens,
            others may bind to the same port.

    Raises ConfigError: the port is taken, or the address is not of this machine.
    """
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for option in kept_alive():
            listener.setsockopt(*option)
        listener.bind(address)
        if backlog is not None:
            listener.listen(backlog)
    except OSError as error:
        if listener is not None:
            listener.close()
        advice = ""
        if error.errno == errno.EADDRINUSE:
            advice = " (stop its owner or choose another --port)"
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}{advice}"
        ) from error
    return listener


def kept_alive() -> list[tuple[int, int, int]]:
    """Options for ``setsockopt``; a listening socket passes them on. Linux has all of them."""
    wanted = {
        "TCP_KEEPIDLE": IDLE_S,
        "TCP_KEEPINTVL": PROBE_S,
        "TCP_KEEPCNT": PROBES,
        "TCP_USER_TIMEOUT": SILENCE_S * 1000,  # ms without an acknowledgement
    }
    found = [(getattr(socket, name, None), value) for name, value in wanted.items()]
    known = [(socket.IPPROTO_TCP, name, value) for name, value in found if name is not None]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *known]


def run_app(app: ASGIApp, listener: socket.socket) -> None:
    """Serve ``app`` on ``listener`` until interrupted. Open requests end 5 s after that.

    Threads cannot be cancelled: the process exits with status 128 + signal while one still works
    ``STOP_S`` after the signal, for instance on a copy of weights.
    """
    import uvicorn

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            received: list[int] = []

            def on_signal(number: int) -> None:
                if not received:
                    last = threading.Timer(STOP_S, os._exit, (128 + number,))
                    last.daemon = True
                    last.start()
                received.append(number)
                self.handle_exit(number, None)

            on_signals(on_signal, signal.SIGTERM, signal.SIGINT)
            yield
            for number in received[:1]:  # the exit status is that of the signal
                reset_and_raise(number)

    config = uvicorn.Config(
        app,
        http=head_deadline(),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    Server(config).run(sockets=[listener])


def is_loopback(host: str) -> bool:
    """Whether ``host`` is only reachable from this machine. Other names may resolve anywhere."""
    address = address_of(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def start_hint(command: str, url: str) -> str:
    """The remedy for an absent server: ``start it: run-api --port 8000``, or its host."""
    address = urlsplit(url)
    if not is_loopback(address.hostname or ""):
        return f"check the address, or start it on {address.hostname}: {command}"
    return f"start it: {command} --port {address.port or 80}"


def address_of(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address, also in the brackets of a Host header; None for another name."""
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def host_name(header: bytes) -> str | None:
    """The host of a Host header, ``LocalHost.:8000`` -> ``localhost``; None if malformed."""
    match = _HOST.fullmatch(header.decode("latin-1").lower())
    return match["name"].removesuffix(".") if match else None


class HostGuard:
    """ASGI middleware against DNS rebinding: rejects other names in the Host header.

    Addresses cannot be rebound, and names without a dot (``node017``, a service of a compose
    file) cannot be registered, so both always pass.

    Args:
        allowed: names that pass besides; None or ``*`` passes every request.
        refuse: the response for (status, detail): 400 malformed, 421 another name.
    """

    def __init__(
        self,
        app: ASGIApp,
        allowed: Iterable[str] | None,
        refuse: Callable[[int, str], ASGIApp],
    ) -> None:
        self.app = app
        self._refuse = refuse
        names = None if allowed is None else frozenset(name.lower() for name in allowed)
        self._allowed = None if names is None or ANY_HOST in names else names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._allowed is None or scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        name = host_name(hosts[0]) if len(hosts) == 1 else None
        if name is None:
            refused = self._refuse(400, "one well-formed Host header is expected")
        elif name in self._allowed or "." not in name or address_of(name):
            await self.app(scope, receive, send)
            return
        else:
            detail = f"{name} is no name of this server: add --allow-host {name}"
            refused = self._refuse(421, detail)
        if scope["type"] == "http":
            await refused(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})


class PageGuard:
    """ASGI middleware of every HTTP server: both guards against web pages.

    Args:
        names: of this server, besides those without a dot; None: any name.
    """

    def __init__(
        self,
        app: ASGIApp,
        refuse: Callable[[int, str], ASGIApp],
        names: Iterable[str] | None = LOOPBACK_HOSTS,
    ) -> None:
        self._guarded = HostGuard(SameSiteGuard(app, refuse), names, refuse)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guarded(scope, receive, send)


class SameSiteGuard:
    """ASGI middleware that rejects requests which a browser sends for another site, with 403.

    A WebSocket, which browsers open to any site, is closed.

    Args:
        changing_gets: paths whose GET changes something. A page can send it to plain HTTP
            without any sign of the page, so a browser needs ``Sec-Fetch-Site`` for it.
    """

    def __init__(
        self,
        app: ASGIApp,
        refuse: Callable[[int, str], ASGIApp],
        changing_gets: Collection[str] = (),
    ) -> None:
        self.app = app
        self._refuse = refuse
        self._changing_gets = changing_gets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            changes = scope["method"] == "GET" and scope["path"] in self._changing_gets
            site = other_site(dict(scope["headers"]), changes)
            if site is not None:
                detail = f"requests of another site ({site}) are refused"
                await self._refuse(403, detail)(scope, receive, send)
                return
        elif scope["type"] == "websocket" and other_site(dict(scope["headers"])):
            await send({"type": "websocket.close", "code": 1008})
            return
        await self.app(scope, receive, send)


def other_site(headers: Mapping[bytes, bytes], changing_get: bool = False) -> str | None:
    """The site for which a browser sends a request, or None. Browsers send ``Sec-Fetch-Site``
    to https and loopback only, elsewhere ``Origin`` or ``Referer``."""
    if (site := headers.get(b"sec-fetch-site")) is not None:
        return None if site in (b"none", b"same-origin") else site.decode("latin-1")
    host = headers.get(b"host", b"").decode("latin-1").lower()
    pages = [headers[name] for name in (b"origin", b"referer") if name in headers]
    for page in pages:
        address = page.decode("latin-1").lower()
        if address.partition("://")[2].partition("/")[0] != host:
            return address[:200]
    browser = headers.get(b"user-agent", b"").startswith(b"Mozilla/")
    return "unknown" if changing_get and browser and not pages else None


class Exchange:
    """Pass the messages of one request on; keep its status and count its bytes."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.status = NO_REPLY
        self.bytes_in = 0
        self.bytes_out = 0
        self.endless_since: float | None = None  # an event stream begins once, then never ends

    async def receive(self) -> Message:
        message = await self._receive()
        self.bytes_in += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            content_type = dict(message.get("headers", ())).get(b"content-type", b"")
            if content_type.startswith(b"text/event-stream"):
                self.endless_since = time.monotonic()
        self.bytes_out += len(message.get("body", b""))
        await self._send(message)

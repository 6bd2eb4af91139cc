"""Listening sockets, addresses of loopback, and the time after which a silent peer is gone."""

from __future__ import annotations

import errno
import ipaddress
import socket
from urllib.parse import urlsplit

from atroposlib.errors import ConfigError

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")  # spelling of the Host header
# A connection whose peer vanished ends within SILENCE_S. Otherwise a request waits for its own
# timeout, of minutes, and unacknowledged data is sent again in pauses of up to two minutes,
# also after a network is back. Calls may be repeated: a connection that ends too early costs a
# retry.
SILENCE_S = 30
IDLE_S, PROBE_S = 15, 5  # silence before the first probe, pause between two
PROBES = (SILENCE_S - IDLE_S) // PROBE_S
CONNECT_TIMEOUT_S = (
    10.0  # limit of a new connection; its first packet is repeated after 1, 3 and 7 s
)


def bind(host: str, port: int, backlog: int | None = None) -> socket.socket:
    """A TCP socket bound to ``host`` and ``port``, so that a taken port fails early.

    Args:
        backlog: start to listen with it; None: the caller does. Until a socket listens,
            any process may bind to the same port.

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


def port_problem(port: int) -> str:
    """Reason why no server here can listen on a port now; empty for a free port and for 0."""
    if not port:
        return ""
    with socket.socket() as probe:
        # As servers do: a connection of an earlier run in TIME_WAIT does not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def kept_alive() -> list[tuple[int, int, int]]:
    """Options for ``setsockopt``, inherited from a listening socket. Linux has all options."""
    wanted = {
        "TCP_KEEPIDLE": IDLE_S,
        "TCP_KEEPINTVL": PROBE_S,
        "TCP_KEEPCNT": PROBES,
        "TCP_USER_TIMEOUT": SILENCE_S * 1000,  # ms without an acknowledgement
    }
    options = [(getattr(socket, name, None), value) for name, value in wanted.items()]
    known = [(socket.IPPROTO_TCP, name, value) for name, value in options if name is not None]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *known]


def is_loopback(host: str) -> bool:
    """Whether ``host`` is only reachable from this machine. A host name may resolve anywhere."""
    address = address_of(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def refuse_exposure(host: str, advice: str, *, allowed: bool = False) -> None:
    """Raise ConfigError with ``advice`` if other machines reach ``host`` and are not allowed."""
    if not allowed and not is_loopback(host):
        raise ConfigError(f"--host {host} is reachable from other machines: {advice}")


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

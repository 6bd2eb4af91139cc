"""A pooler in front of PostgreSQL, as far as the store can tell one.

Each client has a process id of its own. With ``shares_sessions`` it gets an idle session of
the server for each transaction, the one that was freed last; otherwise it keeps one.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from tests.api.store.postgres.postgres_line import Gateway

SSL_OR_GSS = (80877103, 80877104)  # codes of requests for encryption


class Pooler(Gateway):
    """One thread per client."""

    def __init__(self, folder: Path, shares_sessions: bool) -> None:
        self._shares = shares_sessions
        self._idle: list[socket.socket] = []
        super().__init__(folder)

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            start = _start_packet(client)
            server = self._connected(start, client)
            self._idle += [server] if self._shares else []
            while True:
                message = _message(client)
                if self._shares:
                    server = self._idle.pop() if self._idle else self._connected(start)
                server.sendall(message)
                self._pass_on_transaction(client, server)

    def _pass_on_transaction(self, client: socket.socket, server: socket.socket) -> None:
        """Pass messages on until the server is in no transaction."""
        while True:
            ready = select.select([client, server], [], [])[0]
            if client in ready:
                server.sendall(_message(client))
            if server in ready:
                message = _message(server)
                idle = message[:1] == b"Z" and message[5:6] == b"I"
                self._idle += [server] if idle and self._shares else []
                client.sendall(message)
                if idle:
                    return

    def _connected(self, start: bytes, client: socket.socket | None = None) -> socket.socket:
        server = self._server()
        server.sendall(start)
        message = b""
        while message[:1] != b"Z":
            message = _message(server)
            if message[:1] == b"K":  # process id and secret for cancel requests
                message = message[:5] + struct.pack("!I", 7) + message[9:]
            if client is not None:
                client.sendall(message)
        return server


def _start_packet(client: socket.socket) -> bytes:
    while True:
        head = _exactly(client, 8)
        length, code = struct.unpack("!II", head)
        if code not in SSL_OR_GSS:
            return head + _exactly(client, length - 8)
        client.sendall(b"N")


def _message(end: socket.socket) -> bytes:
    head = _exactly(end, 5)
    return head + _exactly(end, struct.unpack("!I", head[1:])[0] - 4)


def _exactly(end: socket.socket, n_bytes: int) -> bytes:
    data = b""
    while len(data) < n_bytes:
        if not (part := end.recv(n_bytes - len(data))):
            raise EOFError
        data += part
    return data


@contextlib.contextmanager
def running_pooler(folder: Path, shares_sessions: bool) -> Iterator[Pooler]:
    pooler = Pooler(folder, shares_sessions)
    try:
        yield pooler
    finally:
        pooler.close()

"""A pooler in front of PostgreSQL, as far as the store can tell one.

Each client has a process id of its own. With ``shares_sessions`` it gets an idle session of
the server for each transaction, the one that was freed last; otherwise it keeps one.
"""

from __future__ import annotations

import contextlib
import select
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.api.store.postgres.postgres_line import SOCKET, end_all

SSL_OR_GSS = (80877103, 80877104)  # codes of requests for encryption


class Pooler:
    """Listens on a socket in a folder of its own, one thread per client."""

    def __init__(self, folder: Path, shares_sessions: bool) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="atropos-pooler-"))
        self._target, self._shares = str(folder / SOCKET), shares_sessions
        self._idle: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._ends = [self._listener]
        self._listener.bind(str(self.home / SOCKET))
        self._listener.listen()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def url(self, schema: str) -> str:
        return f"postgresql://atropos@/postgres?host={self.home}&schema={schema}"

    def close(self) -> None:
        """``select`` on a closed socket is a ValueError, so the threads end first."""
        end_all(self._threads, self._ends)
        shutil.rmtree(self.home, ignore_errors=True)

    def _start(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._ends.append(client)
                self._start(self._serve, client)

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
        server = socket.socket(socket.AF_UNIX)
        self._ends.append(server)
        server.connect(self._target)
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

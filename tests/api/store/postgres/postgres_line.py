"""A line to a PostgreSQL server that can break at the worst moment: around a COMMIT."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
import threading
from pathlib import Path

SOCKET = ".s.PGSQL.5432"


def end_all(threads: list[threading.Thread], sockets: list[socket.socket]) -> None:
    """End the threads, then close; both lists may grow meanwhile, by a last connection.

    ``select`` on a closed socket is a ValueError, so the threads end first.
    """
    while any(thread.is_alive() for thread in threads):
        for one in list(sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in list(threads):
            thread.join(0.1)
    for one in sockets:
        one.close()


class Gateway:
    """Listens on a socket in a folder of its own, in front of the server in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="atropos-gateway-"))
        self._target = str(folder / SOCKET)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.home / SOCKET))
        self._listener.listen()
        self._threads: list[threading.Thread] = []
        self._ends: list[socket.socket] = [self._listener]
        self._spawn(self._accept)

    def url(self, schema: str) -> str:
        return f"postgresql://atropos@/postgres?host={self.home}&schema={schema}"

    def close(self) -> None:
        end_all(self._threads, self._ends)
        shutil.rmtree(self.home, ignore_errors=True)

    def _spawn(self, target, *args) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._ends.append(client)
                self._spawn(self._serve, client)

    def _server(self) -> socket.socket:
        server = socket.socket(socket.AF_UNIX)
        self._ends.append(server)
        server.connect(self._target)
        return server


class Line(Gateway):
    """Passes bytes on in both directions.

    ``break_at_commit`` arms it once: "before" loses the COMMIT itself, "after" its answer.
    While ``flowing`` is clear it passes nothing on and closes nothing, as a frozen server.
    """

    def __init__(self, folder: Path) -> None:
        self._lose: str | None = None
        self.flowing = threading.Event()
        self.flowing.set()
        super().__init__(folder)

    def break_at_commit(self, moment: str) -> None:
        self._lose = moment

    def close(self) -> None:
        self.flowing.set()
        super().close()

    def _serve(self, client: socket.socket) -> None:
        server = self._server()
        self._spawn(self._pass_on, client, server, True)
        self._pass_on(server, client, False)

    def _pass_on(self, source: socket.socket, sink: socket.socket, outward: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.flowing.wait()
                if outward and self._lose and b"COMMIT\0" in data:
                    if self._lose == "after":
                        sink.sendall(data)
                        self._lose = "answer"
                        continue
                    self._lose = None
                    break
                if not outward and self._lose == "answer":
                    self._lose = None
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

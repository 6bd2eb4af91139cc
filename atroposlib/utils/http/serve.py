"""Serve an app on a bound socket until a signal."""

from __future__ import annotations

import os
import signal
import socket
import threading
import webbrowser
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from atroposlib.utils.command.signals import on_signals, reset_and_raise
from atroposlib.utils.http.protocol import head_deadline
from atroposlib.utils.http.sockets import bind

if TYPE_CHECKING:
    from starlette.types import ASGIApp

STOP_S = 8.0  # longest time from a signal to the end of a process


def serve_page(app: ASGIApp, port: int, browser: bool, path: str, what: str = "view") -> None:
    """Serve the page at ``path`` on loopback until a signal; ``what`` begins the line about it."""
    with bind("127.0.0.1", port, backlog=128) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
        print(f"{what} on {address} (Ctrl-C ends it)", flush=True)
        if browser:
            webbrowser.open(address)
        run_app(app, listener)


def run_app(app: ASGIApp, listener: socket.socket) -> None:
    """Serve ``app``, behind its gate, on ``listener``. Open requests end 5 s after a signal.

    Threads cannot be cancelled: the process exits with status 128 + signal while a thread
    still works ``STOP_S`` after the signal, for instance on a copy of weights.
    """
    import uvicorn

    from atroposlib.utils.http.gate import require_gate

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
        require_gate(app),
        http=head_deadline(),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
    )
    Server(config).run(sockets=[listener])

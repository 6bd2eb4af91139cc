"""An app on a real socket, in a thread of the test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

WAIT_S = 600.0  # far beyond what anything here takes: only a hang reaches it


@contextmanager
def served(app: Any, ws: str = "none") -> Iterator[str]:
    """The app on a free port of the loopback interface; yields its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    settings = uvicorn.Config(
        app, log_level="error", access_log=False, ws=ws, timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(settings)
    # The listener takes connections before the server runs, so no caller has to wait for it.
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(WAIT_S)
        listener.close()

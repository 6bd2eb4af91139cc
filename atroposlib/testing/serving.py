"""An app on a real socket, in a thread of the test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

WAIT_S = 600.0  # far beyond what anything here takes: only a hang reaches it


@contextmanager
def serve_in_thread(app: Any, port: int = 0, ws: Any = "none") -> Iterator[str]:
    """Serve ``app`` on 127.0.0.1 during the block; yields its URL. Port 0 takes a free port."""
    import uvicorn

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()  # callers may connect before the thread accepts
        config = uvicorn.Config(
            app, log_level="error", access_log=False, ws=ws, timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listener]}, daemon=True
        )
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(WAIT_S)

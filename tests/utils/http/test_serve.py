"""A served app: its end by a signal, and the gate that it needs."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import pytest
from starlette.responses import PlainTextResponse

from atroposlib.utils.http.serve import run_app

BUSY_SERVER = """
import threading
from fastapi import FastAPI
from atroposlib.utils.http import serve
from atroposlib.utils.http.gate import Gate
from atroposlib.utils.http.sockets import bind

app = FastAPI()

@app.get("/")
def copy():  # in a thread, which nothing can cancel
    print("busy", flush=True)
    threading.Event().wait()

serve.STOP_S = 0.2
listener = bind("127.0.0.1", 0, backlog=8)
print(listener.getsockname()[1], flush=True)
serve.run_app(Gate(app, ()), listener)
"""


def test_a_signal_ends_a_server_whose_thread_is_still_at_work():
    server = subprocess.Popen(
        [sys.executable, "-c", BUSY_SERVER], stdout=subprocess.PIPE, text=True
    )
    with server:
        port = int(server.stdout.readline())
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert server.stdout.readline() == "busy\n"
            server.terminate()
            assert server.wait(600) == 128 + signal.SIGTERM


def test_an_app_without_a_gate_is_not_served():
    with pytest.raises(TypeError, match="PlainTextResponse has no gate"):
        run_app(PlainTextResponse("in"), None)

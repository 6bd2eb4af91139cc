"""Real small processes: pieces of Python, some of which serve /health."""

from __future__ import annotations

import sys

import pytest

from atroposlib.processes import Children, ProcessSpec

SERVER = """
import http.server, sys
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{}")
    def log_message(self, *_): pass
print("listening", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""


@pytest.fixture
def spec(tmp_path):
    """Make a ProcessSpec that runs a piece of Python."""

    def make(name, code, *args, **fields):
        argv = (sys.executable, "-c", code, *map(str, args))
        return ProcessSpec(name, argv, {}, tmp_path, **fields)

    return make


@pytest.fixture
def server_spec(spec):
    def make(name, port, **fields):
        url = f"http://127.0.0.1:{port}/health"
        return spec(name, SERVER, port, health_url=url, ready_within_s=60.0, **fields)

    return make


@pytest.fixture
def children(tmp_path):
    with Children(tmp_path / "logs") as started:
        yield started

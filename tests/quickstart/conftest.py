"""Small stand-ins: processes that serve /health, and a plan that starts nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from atroposlib.processes import Children, ProcessSpec
from atroposlib.quickstart.plan import Engine, Options, Plan, recipe_for

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
        return spec(name, SERVER, port, health_url=url, ready_within_s=30.0, **fields)

    return make


@pytest.fixture
def children(tmp_path):
    with Children(tmp_path / "logs") as started:
        yield started


@pytest.fixture
def plan(tmp_path):
    def make(model="smollm2", engine=Engine.LOCAL, **options):
        chosen = Options(model=model, engine=engine, seed=3, out=tmp_path / "out", **options)
        return Plan(
            options=chosen,
            recipe=recipe_for(model, chosen.steps),
            model_dir=Path("models/start"),
            serve_dir=Path("models/start"),
            repo=tmp_path,
            cores=2,
            api_port=18_000,
            server_port=18_001,
        )

    return make

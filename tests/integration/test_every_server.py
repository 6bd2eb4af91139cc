"""Every HTTP server of the project x what a web page sends: nothing of it reaches a route."""

from __future__ import annotations

import ast

import httpx
import pytest
from starlette.responses import PlainTextResponse

from atroposlib.adapters.openenv_server import app_of
from atroposlib.api.archive.explorer import Explorer
from atroposlib.api.server import create_app as api_app, create_view
from atroposlib.api.store import open_store
from atroposlib.cli import serve_api
from atroposlib.cli.export import openenv
from atroposlib.cli.view import page_app
from atroposlib.cli.view_run.page_gate import page_gate
from atroposlib.generation.proxy.main import create_app as proxy_app
from atroposlib.inference.engine.core import EngineLimits
from atroposlib.inference.engine.engine import Engine
from atroposlib.inference.engine.served_model import load_model
from atroposlib.inference.http.app import create_app as inference_app
from atroposlib.testing.tiny import write_tiny_model
from atroposlib.utils.http.gate import require_gate
from atroposlib.utils.http.sockets import LOOPBACK_HOSTS
from atroposlib.workbench.app import create_workbench
from tests.generation.proxy.proxy_kit import AppProxy
from tests.repo import sources


def api(tmp_path):
    return api_app(allowed_hosts=())


def view(tmp_path):
    service, store = api(tmp_path).state.service, open_store("memory")
    return create_view(Explorer(service.context.indexer.index, store, service.run_facts))


def view_of_a_dump(tmp_path):
    return page_app(b"<p>page")


def proxy(tmp_path):
    kit = AppProxy()
    return proxy_app(kit.manager, kit.server.tokenizer, "m", allowed_hosts=LOOPBACK_HOSTS)


def inference(tmp_path):
    model = load_model(str(write_tiny_model(tmp_path / "tiny", seed=0)))
    return inference_app(Engine(model, EngineLimits(), seed=0, num_threads=1))


def view_run(tmp_path):
    return page_gate(PlainTextResponse("page"), None, take=False)


def openenv_server(tmp_path):
    return app_of(
        openenv.environment_to_serve(f"{sources.ROOT}/tests/adapters/toys/turns.py:digits")
    )


def workbench(tmp_path):
    return create_workbench(tmp_path)


# Each server, by the module that puts its gate.
GATED = {
    "atroposlib/api/server.py": (api, view),
    "atroposlib/generation/proxy/main.py": (proxy,),
    "atroposlib/inference/http/app.py": (inference,),
    "atroposlib/cli/view.py": (view_of_a_dump,),
    "atroposlib/cli/view_run/page_gate.py": (view_run,),
    "atroposlib/adapters/openenv_server.py": (openenv_server,),
    "atroposlib/workbench/app.py": (workbench,),
}
SERVERS = tuple(server for servers in GATED.values() for server in servers)


@pytest.fixture(scope="module", params=SERVERS, ids=lambda server: server.__name__)
def app(request, tmp_path_factory):
    """Each server, made once."""
    return request.param(tmp_path_factory.mktemp("server"))


HERE = {"host": "127.0.0.1:8000"}
REBOUND = {"host": "evil.example:8000"}
# What a browser sends for a page of another site.
ATTACKS = {
    "a rebound name": REBOUND,
    "a rebound name, as the page's own": REBOUND
    | {"origin": "http://evil.example:8000", "sec-fetch-site": "same-origin"},
    "a name that holds the address": {"host": "127.0.0.1.nip.io"},
    "a user in the name": {"host": "localhost@evil.example"},
    "a form of another site": HERE
    | {"origin": "http://evil.example", "content-type": "text/plain"},
    "another port": HERE | {"origin": "http://127.0.0.1:9"},
    "a picture of another site": HERE | {"sec-fetch-site": "cross-site"},
    "a site beside": HERE | {"sec-fetch-site": "same-site"},
    "a link from another site": HERE | {"referer": "http://evil.example/page"},
    "a page of a file": HERE | {"origin": "null"},
}
ROUTES = [
    ("GET", "/health"),
    ("GET", "/server_info"),
    ("POST", "/pause"),
    ("POST", "/copy_to_node"),
    ("POST", "/update_weights_from_disk"),
    ("POST", "/reset_data"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/nowhere"),
]


@pytest.mark.parametrize("attack", ATTACKS)
async def test_what_a_web_page_sends_is_refused(app, attack):
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        for method, path in ROUTES:
            reply = await http.request(method, path, headers=ATTACKS[attack], content=b"{}")
            assert reply.status_code in (400, 403, 421), (method, path, reply.text)


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "[::1]:8000", "node7"])
async def test_clients_of_this_machine_reach_every_server(app, host):
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        reply = await http.get("/health", headers={"host": host})
    assert reply.status_code in (200, 404)


@pytest.mark.parametrize("attack", ATTACKS)
async def test_a_websocket_of_a_web_page_is_closed(app, attack):
    headers = [(k.encode(), v.encode()) for k, v in ATTACKS[attack].items()]
    scope = {"type": "websocket", "path": "/ws", "headers": headers}
    sent = []

    async def send(message):
        sent.append(message["type"])

    await app(scope, None, send)
    assert sent == ["websocket.close"]


# --- no server without a gate ---------------------------------------------------------------

# Fakes of engines for tests serve their users' own process.
FAKES = "atroposlib/testing/"


def calls_in(function):
    """(file, call) of every call of ``function`` in the product."""
    for source in sources.load().sources:
        path = str(source.path)
        if not path.startswith(sources.PACKAGES) or path.startswith(FAKES):
            continue
        if f"{function}(" not in source.text:  # most files are not parsed
            continue
        for node in source.nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func) == function:
                yield path, node


def test_every_app_that_a_server_is_made_of_is_required_to_have_a_gate():
    configured = dict(calls_in("uvicorn.Config"))
    assert len(configured) == 3  # run-api, agents in one process with a trainer, all others
    for path, call in configured.items():
        assert ast.unparse(call.args[0]) == "require_gate(app)", path
    assert {path for path, _ in calls_in("uvicorn.run")} == {"atroposlib/cli/serve_api.py"}


def test_the_reloading_server_is_made_by_a_factory_that_requires_a_gate(monkeypatch, tmp_path):
    monkeypatch.setenv("ATROPOS_STORE", "memory")
    monkeypatch.setenv("ATROPOS_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(serve_api.logs, "configure", lambda *settings: None)
    app = serve_api.app_from_environment()
    require_gate(app)
    app.state.service.close()


def test_every_gate_of_the_product_is_attacked_above():
    assert {path for path, _ in calls_in("Gate")} == GATED.keys()


def test_every_server_passes_through_its_gate(app):
    require_gate(app)

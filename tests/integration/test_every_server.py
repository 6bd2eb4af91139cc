"""Every HTTP server of the project x what a web page sends: nothing of it reaches a route."""

from __future__ import annotations

import httpx
import pytest
from starlette.responses import PlainTextResponse

from atroposlib.api.archive.explorer import Explorer
from atroposlib.api.server import create_app as api_app
from atroposlib.api.server import create_view
from atroposlib.api.store import open_store
from atroposlib.cli.export import openenv
from atroposlib.cli.view_run.page_guards import PageGuards
from atroposlib.generation.proxy.main import create_app as proxy_app
from atroposlib.inference.engine.core import EngineLimits
from atroposlib.inference.engine.engine import Engine
from atroposlib.inference.engine.served_model import load_model
from atroposlib.inference.http.app import create_app as inference_app
from atroposlib.testing.tiny import write_tiny_model
from atroposlib.utils.http_server import LOOPBACK_HOSTS, PageGuard
from tests.generation.proxy.proxy_kit import AppProxy


def api(tmp_path):
    return api_app(allowed_hosts=())


def view(tmp_path):
    service, store = api(tmp_path).state.service, open_store("memory")
    return create_view(Explorer(service.context.indexer.index, store, service.run_facts))


def proxy(tmp_path):
    kit = AppProxy()
    return proxy_app(kit.manager, kit.server.tokenizer, "m", allowed_hosts=LOOPBACK_HOSTS)


def inference(tmp_path):
    model = load_model(str(write_tiny_model(tmp_path / "tiny", seed=0)))
    return inference_app(Engine(model, EngineLimits(), seed=0, num_threads=1))


def view_run(tmp_path):
    return PageGuards(PlainTextResponse("page"), None, take=False)


def openenv_server(tmp_path):
    return PageGuard(PlainTextResponse("page"), openenv._refuse)


SERVERS = (api, view, proxy, inference, view_run, openenv_server)
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
@pytest.mark.parametrize("server", SERVERS)
async def test_what_a_web_page_sends_is_refused(server, attack, tmp_path):
    transport = httpx.ASGITransport(server(tmp_path))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        for method, path in ROUTES:
            reply = await http.request(method, path, headers=ATTACKS[attack], content=b"{}")
            assert reply.status_code in (400, 403, 421), (method, path, reply.text)


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "[::1]:8000", "node7"])
@pytest.mark.parametrize("server", SERVERS)
async def test_clients_of_this_machine_reach_every_server(server, host, tmp_path):
    transport = httpx.ASGITransport(server(tmp_path))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        reply = await http.get("/health", headers={"host": host})
    assert reply.status_code in (200, 404)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("server", [view_run, openenv_server])
async def test_a_websocket_of_a_web_page_is_closed(server, attack, tmp_path):
    headers = [(k.encode(), v.encode()) for k, v in ATTACKS[attack].items()]
    scope = {"type": "websocket", "path": "/ws", "headers": headers}
    sent = []

    async def send(message):
        sent.append(message["type"])

    await server(tmp_path)(scope, None, send)
    assert sent == ["websocket.close"]

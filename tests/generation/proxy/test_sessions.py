"""Sessions of a proxy: servers, limits, expiry, setup."""

from __future__ import annotations

import httpx
import pytest

from atroposlib.errors import ConfigError
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.proxy.main import ProxyLimits, create_app
from atroposlib.generation.proxy.sessions import Setup
from atroposlib.generation.routing.manager import ServerManager
from tests.generation.proxy.proxy_kit import AppProxy, ScriptedServer, tool_tokenizer

HELLO = {"messages": [{"role": "user", "content": "hello"}]}


async def test_a_session_is_assigned_to_the_requested_server():
    proxy = AppProxy()
    other = ScriptedServer(lambda prompt, i: "other")
    other.config = APIServerConfig(base_url="http://other/v1", server_type="vllm")
    proxy.manager.servers.append(other)
    uuid = await proxy.open(base_url="http://other/v1/")
    reply = await proxy.ask("POST", f"/{uuid}/v1/chat/completions", HELLO)
    assert reply["choices"][0]["message"]["content"] == "other"
    body = await proxy.ask("POST", "/sessions/create", {"base_url": "http://x/v1"}, status=404)
    assert "http://scripted/v1, http://other/v1" in body["error"]["message"]
    error = await proxy.ask("POST", "/sessions/create", {"tool_parser": "nope"}, status=400)
    assert "nope" in error["error"]["message"]


async def test_sessions_are_spread_over_servers_and_released_from_them():
    urls = [f"http://node{i}:9001/v1" for i in range(2)]
    manager = ServerManager([APIServerConfig(base_url=u, server_type="vllm") for u in urls])
    app = create_app(manager, tool_tokenizer(), "m")
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as http:
        opened = [(await http.post("/sessions/create", json={})).json() for _ in range(4)]
        assert sorted(one["base_url"] for one in opened) == sorted(urls * 2)
        for one in opened:
            await http.delete(f"/{one['uuid']}")
    assert [server.sessions for server in manager.servers] == [0, 0]


async def test_setup_replaces_the_servers_for_new_sessions_only():
    proxy = AppProxy()
    old = await proxy.open()
    body = {"model_name": "new", "servers": [{"base_url": "http://localhost:1/v1"}]}
    assert await proxy.ask("POST", "/setup", body) == {
        "status": "ok",
        "servers": 1,
        "model_name": "new",
    }
    (server,) = (await proxy.ask("GET", "/servers"))["servers"]
    assert (server["server_type"], server["model_name"]) == ("vllm", "new")
    assert (await proxy.ask("POST", "/sessions/create", {}))["model_name"] == "new"
    assert (await proxy.ask("POST", f"/{old}/v1/chat/completions", HELLO))["model"] == "m"
    for wrong in ({"model_name": "x"}, {"model_name": "x", "servers": []}):
        await proxy.ask("POST", "/setup", wrong, status=400)


async def test_sessions_are_bounded_and_idle_ones_expire():
    proxy = AppProxy(limits=ProxyLimits(max_sessions=2, idle_s=60))
    first, second = await proxy.open(), await proxy.open()
    error = (await proxy.ask("POST", "/sessions/create", {}, status=429))["error"]
    assert "2 sessions are open" in error["message"]
    sessions = proxy.app.state.sessions
    used = sessions.find(second).last_accessed
    sessions.find(first).last_accessed = used - 59
    assert await sessions.expire(now=used) == 0
    assert await sessions.expire(now=used + 2) == 1
    await proxy.ask("GET", f"/{first}/nodes", status=404)
    await proxy.open()


async def test_a_text_only_server_serves_agents_without_rows(fake_url):
    manager = ServerManager([APIServerConfig(base_url=f"{fake_url}/v1", server_type="openai")])
    app = create_app(manager, None, "m")
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as http:
        uuid = (await http.post("/sessions/create", json={})).json()["uuid"]
        body = {**HELLO, "logprobs": True, "return_token_ids": True}
        reply = (await http.post(f"/{uuid}/v1/chat/completions", json=body)).json()
        assert reply["choices"][0]["message"]["content"].startswith("reply")
        assert reply["choices"][0]["logprobs"] is None
        (node,) = (await http.get(f"/{uuid}/nodes")).json()["nodes"]
        assert node["metadata"]["dummy_tokens"] is True
        rows = await http.get(f"/sessions/{uuid}/rows")
        assert (rows.status_code, "placeholder" in rows.text) == (409, True)
        render = await http.post(f"/{uuid}/v1/chat/completions/render", json=HELLO)
        assert render.status_code == 400
    await manager.close()


def test_unusable_settings_are_named_in_the_error(tmp_path):
    path = tmp_path / "servers.json"
    path.write_text('{"model_name": "m"}')
    with pytest.raises(ConfigError, match="servers"):
        Setup.read(path)
    wrong = Setup(model_name="m", servers=[{"base_url": "http://x/v1", "timeout": "long"}])
    with pytest.raises(ConfigError, match=r"servers\[0\]\.timeout"):
        wrong.manager()

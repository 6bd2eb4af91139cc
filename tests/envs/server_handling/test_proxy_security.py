"""Who may call the proxy: the admin, a session's own agent, this machine, no web page."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import httpx
import pytest

from atroposlib.errors import ConfigError
from atroposlib.generation.proxy.main import Limits, create_app, main
from tests.envs.server_handling.proxy_kit import Manager, ScriptedServer, tool_tokenizer

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}
ADMIN = {"Authorization": "Bearer the-admin-token"}
OPEN_TO_ALL = {("get", "/health"), ("get", "/v1/models"), ("get", "/v1/models/{model}")}


def made(client=("127.0.0.1", 5), **options) -> tuple[object, httpx.AsyncClient]:
    server = ScriptedServer(lambda prompt, i: "word")
    app = create_app(Manager(server), server.tokenizer, "m", **options)
    transport = httpx.ASGITransport(app, client=client)
    return app, httpx.AsyncClient(transport=transport, base_url="http://proxy")


async def test_with_an_admin_token_no_route_answers_a_stranger():
    app, http = made(admin_token="the-admin-token")
    opened = (await http.post("/sessions/create", json={}, headers=ADMIN)).json()
    asked = set()
    for template, methods in app.openapi()["paths"].items():
        for method in methods:
            if (method, template) in OPEN_TO_ALL:
                continue
            path = template.replace("{session_id}", opened["uuid"]).replace("{model}", "m")
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": ""}):
                reply = await http.request(method, path, json=HELLO, headers=headers)
                assert reply.status_code == 401, (method, path)
                assert "error" in reply.json()
            asked.add((method, path))
    assert len(asked) > 20


async def test_the_key_of_a_session_opens_that_session_only():
    _, http = made(admin_token="the-admin-token")
    opened = [
        (await http.post("/sessions/create", json={}, headers=ADMIN)).json() for _ in range(2)
    ]
    own = {"Authorization": f"Bearer {opened[0]['api_key']}"}
    path = "/{}/v1/chat/completions"
    mine, other = (path.format(one["uuid"]) for one in opened)
    assert (await http.post(mine, json=HELLO, headers=own)).status_code == 200
    assert (await http.post(other, json=HELLO, headers=own)).status_code == 401
    assert (await http.post(other, json=HELLO, headers=ADMIN)).status_code == 200
    for owners in ("/sessions", "/servers"):
        assert (await http.get(owners, headers=own)).status_code == 401
        assert (await http.get(owners, headers=ADMIN)).status_code == 200
    assert (await http.post("/setup", json={}, headers=own)).status_code == 401


async def test_without_a_token_only_this_machine_may_replace_the_servers():
    body = {"model_name": "m", "servers": [{"base_url": "http://localhost:1/v1"}]}
    _, far = made(client=("10.1.2.3", 5))
    assert (await far.post("/setup", json=body)).status_code == 403
    assert (await far.post("/sessions/create", json={})).status_code == 200
    _, near = made()
    assert (await near.post("/setup", json=body)).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "evil.example.org"}, 421),
        ({"Host": "evil.example.org:9100"}, 421),
        ({"Host": "ours.example.org"}, 200),
        ({"Host": "localhost:9100"}, 200),
        ({"Host": "192.168.0.9:9100"}, 200),
        ({"Host": "[::1]:9100"}, 200),
        ({"Host": "node017"}, 200),
    ],
)
async def test_pages_of_other_names_and_sites_are_refused(headers, status):
    _, http = made(allowed_hosts=["ours.example.org"])
    assert (await http.get("/health", headers=headers)).status_code == status


async def test_a_body_is_bounded_and_never_inflated():
    _, http = made(limits=Limits(max_body_bytes=1000))
    uuid = (await http.post("/sessions/create", json={})).json()["uuid"]
    path = f"/{uuid}/v1/chat/completions"
    big = await http.post(path, json={**HELLO, "user": "x" * 1000})
    assert (big.status_code, "1000 bytes" in big.text) == (413, True)
    packed = await http.post(path, content=b"x", headers={"Content-Encoding": "gzip"})
    assert packed.status_code == 415


def test_an_open_proxy_for_other_machines_has_to_be_wanted(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("ATROPOS_PROXY_TOKEN", raising=False)
    config = tmp_path / "servers.json"
    config.write_text(json.dumps({"model_name": "m", "servers": []}))
    arguments = ["--config", str(config)]
    assert main([*arguments, "--host", "0.0.0.0"]) == 1
    assert "--allow-remote" in capsys.readouterr().err
    assert main([*arguments, "--host", "0.0.0.0", "--allow-remote"]) == 1
    assert "at least one" in capsys.readouterr().err
    monkeypatch.setenv("ATROPOS_PROXY_TOKEN", "secret")
    assert main([*arguments, "--host", "0.0.0.0"]) == 1
    assert "at least one" in capsys.readouterr().err
    assert main(["--config", str(tmp_path / "none.json")]) == 1
    assert "none.json" in capsys.readouterr().err


def test_settings_that_cannot_be_used_are_named(tmp_path):
    from atroposlib.generation.proxy.config import Setup

    path = tmp_path / "servers.json"
    path.write_text('{"model_name": "m"}')
    with pytest.raises(ConfigError, match="servers"):
        Setup.read(path)
    wrong = Setup(model_name="m", servers=[{"base_url": "http://x/v1", "timeout": "long"}])
    with pytest.raises(ConfigError, match=r"servers\[0\]\.timeout"):
        wrong.manager()


@pytest.mark.slow
def test_it_runs_as_a_process_and_ends_when_asked(tmp_path):
    tool_tokenizer().save_pretrained(tmp_path / "tokenizer")
    names = {"model_name": "m", "tokenizer_name": str(tmp_path / "tokenizer")}
    servers = [{"base_url": "http://127.0.0.1:1/v1"}]
    config = tmp_path / "servers.json"
    config.write_text(json.dumps({**names, "servers": servers}))
    module = "atroposlib.generation.proxy.main"
    command = [sys.executable, "-m", module, "--config", str(config), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        url = line.split()[-1]
        assert line == f"proxy of m on {url}\n"
        health = httpx.get(f"{url}/health", timeout=60).json()
        assert (health["model"], health["servers"]) == ("m", 1)
        assert httpx.post(f"{url}/sessions/create", json={}).status_code == 200
        taken = [*command[:-1], url.rpartition(":")[2]]
        clash = subprocess.run(taken, capture_output=True, text=True, timeout=120)
        assert (clash.returncode, "cannot listen" in clash.stderr) == (1, True)
        process.terminate()
        assert process.wait(60) in (0, -signal.SIGTERM)

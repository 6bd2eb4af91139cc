"""Access to the proxy: admin token, session keys, loopback requests, web pages."""

from __future__ import annotations

import httpx
import pytest

from atroposlib.generation.proxy.main import ProxyLimits, create_app
from tests.generation.proxy.proxy_kit import Manager, ScriptedServer

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}
ADMIN = {"Authorization": "Bearer the-admin-token"}
OPEN_TO_ALL = {("get", "/health"), ("get", "/v1/models"), ("get", "/v1/models/{model}")}


def made(client=("127.0.0.1", 5), **options) -> tuple[object, httpx.AsyncClient]:
    server = ScriptedServer(lambda prompt, i: "word")
    app = create_app(Manager(server), server.tokenizer, "m", **options)
    transport = httpx.ASGITransport(app, client=client)
    return app, httpx.AsyncClient(transport=transport, base_url="http://proxy")


async def test_with_an_admin_token_every_route_rejects_unauthenticated_requests():
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


async def test_a_session_key_gives_access_to_that_session_only():
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


async def test_without_an_admin_token_only_loopback_requests_may_replace_the_servers():
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
async def test_requests_for_other_hosts_and_from_other_sites_are_rejected(headers, status):
    _, http = made(allowed_hosts=["ours.example.org"])
    assert (await http.get("/health", headers=headers)).status_code == status


async def test_request_bodies_are_bounded_and_compressed_ones_are_not_inflated():
    _, http = made(limits=ProxyLimits(max_body_bytes=1000))
    uuid = (await http.post("/sessions/create", json={})).json()["uuid"]
    path = f"/{uuid}/v1/chat/completions"
    big = await http.post(path, json={**HELLO, "user": "x" * 1000})
    assert (big.status_code, "1000 bytes" in big.text) == (413, True)
    packed = await http.post(path, content=b"x", headers={"Content-Encoding": "gzip"})
    assert packed.status_code == 415

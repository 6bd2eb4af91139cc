"""Checks against web pages: names in the Host header, and sites for which a browser asks."""

from __future__ import annotations

import httpx
import pytest
from starlette.responses import JSONResponse, PlainTextResponse

from atroposlib.utils.http.gate import Gate
from atroposlib.utils.http.sockets import LOOPBACK_HOSTS
from atroposlib.utils.http.web_pages import host_check, host_name, other_site, site_check


def refuse(status, detail):
    return JSONResponse({"detail": detail}, status)


def gate_of(*checks):
    return Gate(PlainTextResponse("in"), checks)


async def ask(host, allowed=LOOPBACK_HOSTS):
    transport = httpx.ASGITransport(gate_of(host_check(allowed, refuse)))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        return await http.get("/", headers={"host": host})


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1:1", "[::1]:8000", "node7:80"],
)
async def test_own_host_names_addresses_and_names_without_a_dot_are_accepted(host):
    assert (await ask(host)).text == "in"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io:8000"],
)
async def test_another_host_name_is_rejected_with_the_option_that_allows_it(host):
    refused = await ask(host)
    assert refused.status_code == 421
    assert f"--allow-host {host.partition(':')[0]}" in refused.json()["detail"]
    assert (await ask(host, ["*"])).text == "in"
    assert (await ask(host, [host.partition(":")[0].upper()])).text == "in"
    assert (await ask(host, None)).text == "in"


@pytest.mark.parametrize(
    "host",
    ["", "local host", "localhost/", "a@localhost", "[::1", "localhost:80:80", "x" * 300, "é"],
)
async def test_a_malformed_host_header_is_rejected(host):
    assert (await ask(host.encode())).status_code == 400


async def test_exactly_one_host_header_is_accepted():
    sent = []

    async def send(message):
        sent.append(message)

    for headers in ([], [(b"host", b"localhost"), (b"host", b"localhost")]):
        scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}
        await gate_of(host_check(LOOPBACK_HOSTS, refuse))(scope, None, send)
        assert sent.pop(0)["status"] == 400
        sent.clear()


async def test_a_websocket_for_another_host_name_is_closed():
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "websocket", "path": "/", "headers": [(b"host", b"evil.example")]}
    await gate_of(host_check(LOOPBACK_HOSTS, refuse))(scope, None, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_a_host_is_compared_without_its_port():
    assert host_name(b"Node-1:8000") == "node-1"
    assert host_name(b"[::1]:8000") == "[::1]"


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Same-Origin", ""])
async def test_browser_requests_from_another_site_are_rejected(site):
    guarded = gate_of(site_check(refuse))
    transport = httpx.ASGITransport(guarded)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        reply = await http.get("/", headers={"sec-fetch-site": site})
        assert (reply.status_code, site in reply.json()["detail"]) == (403, True)
        for own in ({}, {"sec-fetch-site": "none"}, {"sec-fetch-site": "same-origin"}):
            assert (await http.get("/", headers=own)).text == "in"


@pytest.mark.parametrize(
    ("headers", "site"),
    [
        ({"origin": "http://10.0.0.5:8000"}, None),
        ({"referer": "http://10.0.0.5:8000/docs"}, None),
        ({"origin": "https://evil.example", "sec-fetch-site": "same-origin"}, None),
        ({"origin": "https://evil.example"}, "https://evil.example"),
        ({"origin": "null"}, "null"),
        ({"origin": "http://10.0.0.5:9"}, "http://10.0.0.5:9"),
        ({"referer": "https://evil.example/x"}, "https://evil.example/x"),
        ({"user-agent": "Mozilla/5.0"}, "unknown"),  # <img referrerpolicy="no-referrer">
        ({"user-agent": "curl/8.5.0"}, None),
        ({}, None),
    ],
)
def test_the_page_that_changes_something_over_plain_http_is_found(headers, site):
    sent = {name.encode(): value.encode() for name, value in headers.items()}
    sent[b"host"] = b"10.0.0.5:8000"
    assert other_site(sent, changing_get=True) == site
    assert other_site(sent) == (None if site == "unknown" else site)

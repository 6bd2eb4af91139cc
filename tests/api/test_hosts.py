"""A page that rebinds its name to this machine gets nothing."""

from __future__ import annotations

import httpx
import pytest
from starlette.responses import PlainTextResponse

from atroposlib.api.guards.host_guard import LOOPBACK_HOSTS, Hosts, host_name


async def ask(host, allowed=LOOPBACK_HOSTS):
    transport = httpx.ASGITransport(Hosts(PlainTextResponse("in"), allowed))
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        return await http.get("/", headers={"host": host})


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1:1", "[::1]:8000", "node7:80"],
)
async def test_our_names_addresses_and_names_without_a_dot_pass(host):
    assert (await ask(host)).text == "in"


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io:8000"],
)
async def test_another_name_is_refused_with_the_option_that_allows_it(host):
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
async def test_what_is_no_host_is_refused(host):
    assert (await ask(host.encode())).status_code == 400


async def test_one_host_header_is_expected():
    sent = []

    async def send(message):
        sent.append(message)

    for headers in ([], [(b"host", b"localhost"), (b"host", b"localhost")]):
        scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}
        await Hosts(PlainTextResponse("in"), LOOPBACK_HOSTS)(scope, None, send)
        assert sent.pop(0)["status"] == 400
        sent.clear()


async def test_a_websocket_of_another_name_is_closed():
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "websocket", "path": "/", "headers": [(b"host", b"evil.example")]}
    await Hosts(PlainTextResponse("in"), LOOPBACK_HOSTS)(scope, None, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_a_host_is_read_without_its_port():
    assert host_name(b"Node-1:8000") == "node-1"
    assert host_name(b"[::1]:8000") == "[::1]"

"""Listening sockets, loopback names, and the guards against web pages."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys

import httpx
import pytest
from starlette.responses import JSONResponse, PlainTextResponse

from atroposlib.client import AsyncRolloutClient, RolloutClient
from atroposlib.errors import ConfigError
from atroposlib.generation.engines.http import HttpClient
from atroposlib.utils.http_server import (
    LOOPBACK_HOSTS,
    SILENCE_S,
    HostGuard,
    SameSiteGuard,
    bind,
    host_name,
    is_loopback,
    kept_alive,
    other_site,
)
from example_trainer.weights.engines.http import Http
from tests.serving import served


def refuse(status, detail):
    return JSONResponse({"detail": detail}, status)


async def ask(host, allowed=LOOPBACK_HOSTS):
    transport = httpx.ASGITransport(HostGuard(PlainTextResponse("in"), allowed, refuse))
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
        await HostGuard(PlainTextResponse("in"), LOOPBACK_HOSTS, refuse)(scope, None, send)
        assert sent.pop(0)["status"] == 400
        sent.clear()


async def test_a_websocket_for_another_host_name_is_closed():
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "websocket", "path": "/", "headers": [(b"host", b"evil.example")]}
    await HostGuard(PlainTextResponse("in"), LOOPBACK_HOSTS, refuse)(scope, None, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_a_host_is_compared_without_its_port():
    assert host_name(b"Node-1:8000") == "node-1"
    assert host_name(b"[::1]:8000") == "[::1]"


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Same-Origin", ""])
async def test_browser_requests_from_another_site_are_rejected(site):
    guarded = SameSiteGuard(PlainTextResponse("in"), refuse)
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


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.3.2.1", "::1"])
def test_names_of_this_machine_are_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "10.0.0.1", "localhost.evil.example", "127.0.0.1.nip.io", "2130706433"],
)
def test_a_name_that_only_resembles_a_local_one_is_not_loopback(host):
    assert not is_loopback(host)


def test_a_port_in_use_and_a_foreign_address_are_named():
    with bind("127.0.0.1", 0, 8) as owner:
        port = owner.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: .*choose another --port"):
            bind("127.0.0.1", port, 8)
    with pytest.raises(ConfigError, match="cannot listen on 192.0.2.1:0"):
        bind("192.0.2.1", 0)


# --- peers that vanished --------------------------------------------------------------------

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all options")


def settings_of(connection):
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    return [connection.getsockopt(level, name) for level, name, _ in kept_alive()[1:]]


WANTED = [value for _, _, value in kept_alive()[1:]]


@linux
def test_a_silent_peer_is_given_up_after_half_a_minute():
    assert WANTED[-1] == SILENCE_S * 1000
    idle_s, probe_s, probes = WANTED[:3]
    assert idle_s + probe_s * probes == SILENCE_S


@linux
def test_an_accepted_connection_has_the_settings_of_its_listener():
    with bind("127.0.0.1", 0, backlog=1) as listener:
        with socket.create_connection(listener.getsockname()):
            accepted, _ = listener.accept()
            with accepted:
                assert settings_of(accepted) == WANTED


def socket_of(answer):
    return answer.extensions["network_stream"].get_extra_info("socket")


@pytest.fixture
def url():
    with served(PlainTextResponse("here")) as address:
        yield address


@linux
@pytest.mark.parametrize(
    "http_of", [lambda url: RolloutClient(url)._http, lambda url: Http(url, 60.0)._client]
)
def test_blocking_clients_connect_with_these_settings(url, http_of):
    with http_of(url) as http:
        assert settings_of(socket_of(http.get(url))) == WANTED


@linux
@pytest.mark.parametrize(
    "http_of",
    [lambda url: AsyncRolloutClient(url)._http, lambda url: HttpClient(60.0, 4, None).client],
)
async def test_asynchronous_clients_connect_with_these_settings(url, http_of, monkeypatch):
    monkeypatch.setattr("atroposlib.generation.engines.http.getproxies", dict)
    async with http_of(url) as http:
        assert settings_of(socket_of(await http.get(url))) == WANTED


async def test_a_proxy_of_the_environment_is_still_asked(monkeypatch):
    with served(PlainTextResponse("the proxy")) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        async with HttpClient(60.0, 4, None).client as http:
            assert (await http.get("http://engine.invalid/health")).text == "the proxy"


# --- the end --------------------------------------------------------------------------------

BUSY_SERVER = """
import threading
from fastapi import FastAPI
from atroposlib.utils import http_server

app = FastAPI()

@app.get("/")
def copy():  # in a thread, which nothing can cancel
    print("busy", flush=True)
    threading.Event().wait()

http_server.STOP_S = 0.2
listener = http_server.bind("127.0.0.1", 0, backlog=8)
print(listener.getsockname()[1], flush=True)
http_server.run_app(app, listener)
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

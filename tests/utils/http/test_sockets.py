"""Listening sockets, addresses of loopback, and peers that vanished."""

from __future__ import annotations

import socket
import sys

import pytest
from starlette.responses import PlainTextResponse

from atroposlib.client import AsyncRolloutClient, RolloutClient
from atroposlib.errors import ConfigError
from atroposlib.generation.engines.http import HttpClient
from atroposlib.utils.http.sockets import (
    SILENCE_S,
    bind,
    is_loopback,
    kept_alive,
    refuse_exposure,
)
from example_trainer.weights.engines.http import Http
from tests.serving import served


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.3.2.1", "::1"])
def test_names_of_this_machine_are_loopback(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "10.0.0.1", "localhost.evil.example", "127.0.0.1.nip.io", "2130706433"],
)
def test_a_name_that_only_resembles_a_local_one_is_not_loopback(host):
    assert not is_loopback(host)


def test_an_address_that_other_machines_reach_is_refused_with_advice_unless_allowed():
    refuse_exposure("127.0.0.1", "add --tokens FILE")
    refuse_exposure("0.0.0.0", "add --tokens FILE", allowed=True)
    with pytest.raises(ConfigError, match="--host 0.0.0.0 is reachable .*: add --tokens FILE"):
        refuse_exposure("0.0.0.0", "add --tokens FILE")


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
    [
        lambda url: AsyncRolloutClient(url)._http,
        lambda url: HttpClient(60.0, None)._new_client(),
    ],
)
async def test_asynchronous_clients_connect_with_these_settings(url, http_of, monkeypatch):
    monkeypatch.setattr("atroposlib.generation.engines.http.getproxies", dict)
    async with http_of(url) as http:
        assert settings_of(socket_of(await http.get(url))) == WANTED


async def test_a_proxy_of_the_environment_is_still_asked(monkeypatch):
    with served(PlainTextResponse("the proxy")) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        async with HttpClient(60.0, None)._new_client() as http:
            assert (await http.get("http://engine.invalid/health")).text == "the proxy"

"""Clients that open a connection for each call and close it at once get each batch once."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.request
from urllib.parse import urlsplit

import httpx
import pytest
import requests

from tests.api.harness import ENV, TRAINER, group
from tests.api.processes import serving

BATCHES = 5

pytestmark = pytest.mark.slow


def by_requests(url, body):
    return requests.request("GET" if body is None else "POST", url, json=body).json()


def by_httpx(url, body):
    return httpx.request("GET" if body is None else "POST", url, json=body).json()


def by_urllib(url, body):
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as reply:
        return json.loads(reply.read())


def by_http_client(url, body):
    address = urlsplit(url)
    client = http.client.HTTPConnection(address.netloc)
    data = None if body is None else json.dumps(body)
    method = "GET" if body is None else "POST"
    client.request(method, address.path, data, {"content-type": "application/json"})
    reply = json.loads(client.getresponse().read())
    client.close()
    return reply


def by_socket(url, body, version="1.1"):
    """Closes as soon as the last byte of the length named in the head has come."""
    address = urlsplit(url)
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{'GET' if body is None else 'POST'} {address.path} HTTP/{version}\r\n"
    head += f"host: {address.netloc}\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(data)}\r\n\r\n"
    with socket.create_connection((address.hostname, address.port)) as client:
        client.sendall(head.encode() + data)
        received = b""
        while b"\r\n\r\n" not in received:
            received += client.recv(65536)
        head, _, reply = received.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].split()[0])
        while len(reply) < size:
            reply += client.recv(65536)
    return json.loads(reply)


def by_socket_of_http_1_0(url, body):
    return by_socket(url, body, "1.0")


CLIENTS = (
    by_requests,
    by_httpx,
    by_urllib,
    by_http_client,
    by_socket,
    by_socket_of_http_1_0,
)


@pytest.fixture(scope="module", params=["memory", "sqlite", "postgres"])
def store(request):
    if request.param == "postgres":
        return request.getfixturevalue("postgres").fresh_url()
    return request.param


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def api(request, store, tmp_path_factory):
    """The URL of a real process."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    folder = tmp_path_factory.mktemp("api")
    with serving(folder, "--store", store, "--loop", request.param) as (_, url):
        yield url


def started(api, **trainer):
    """The generation of a trainer for which batches are queued."""
    httpx.post(f"{api}/reset_data").raise_for_status()
    registered = httpx.post(f"{api}/register", json=TRAINER | trainer).json()
    if not trainer:
        httpx.get(f"{api}/batch").raise_for_status()
    httpx.post(f"{api}/register-env", json=ENV).raise_for_status()
    groups = [group(4, mark=mark) for mark in range(1, 1 + BATCHES)]
    httpx.post(f"{api}/scored_data_list", json=groups).raise_for_status()
    return registered["generation"]


def marks(reply):
    return [each["tokens"][0][0] for each in reply["batch"] or ()]


@pytest.mark.parametrize("call", CLIENTS)
def test_each_batch_is_delivered_once(api, call):
    started(api)
    received = []
    for _ in range(BATCHES):
        received += marks(call(f"{api}/batch", None))
    assert received == list(range(1, 1 + BATCHES))


@pytest.mark.parametrize("call", CLIENTS)
def test_each_batch_is_claimed_once_without_a_name(api, call):
    generation = started(api, commits=True)
    received = []
    for _ in range(BATCHES):
        claimed = call(f"{api}/batches/claim", {"generation": generation})
        received += marks(claimed)
        ack = {"generation": generation, "epoch": claimed["epoch"]}
        call(f"{api}/batches/{claimed['batch_no']}/ack", ack)
    assert received == list(range(1, 1 + BATCHES))

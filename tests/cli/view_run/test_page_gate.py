"""Requests that reach the page, and those that do not."""

from __future__ import annotations

import base64

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from atroposlib.api.guards.tokens import add_token
from atroposlib.cli.view_run.page_gate import page_gate

page = PlainTextResponse("page")


def client(tokens=None, take=False):
    return TestClient(page_gate(page, tokens, take), base_url="http://127.0.0.1")


def basic(token):
    return {"authorization": "Basic " + base64.b64encode(f"any:{token}".encode()).decode()}


def test_the_page_has_a_policy_that_admits_nothing_of_other_machines():
    reply = client().get("/")
    policy = reply.headers["content-security-policy"]
    assert reply.text == "page"
    assert "default-src 'self'" in policy and "http" not in policy


def test_other_host_names_and_other_sites_are_refused():
    assert client().get("/", headers={"host": "evil.example"}).status_code == 421
    assert client().get("/", headers={"host": "localhost:9001"}).text == "page"
    assert client().get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 403


@pytest.mark.parametrize("path", ["/gradio_api/upload", "/gradio_api/proxy=http://a.b/c"])
def test_routes_that_take_files_or_fetch_are_closed(path):
    assert client().get(path).status_code == 404


def test_a_token_is_asked_for_and_taken_from_the_header(tmp_path):
    tokens = tmp_path / "tokens"
    token = add_token(tokens, "read")
    http = client(tokens)
    asked = http.get("/")
    assert asked.status_code == 401
    assert asked.headers["www-authenticate"].startswith("Basic ")
    assert http.get("/", headers=basic("wrong")).status_code == 401
    assert http.get("/", headers={"authorization": "Basic ?"}).status_code == 401
    assert http.get(f"/?token={token}").status_code == 401
    assert http.get("/", headers=basic(token)).text == "page"
    assert http.get("/", headers={"authorization": f"Bearer {token}"}).text == "page"


def test_taking_batches_needs_the_token_of_a_trainer(tmp_path):
    tokens = tmp_path / "tokens"
    reader, trainer = add_token(tokens, "read"), add_token(tokens, "trainer")
    http = client(tokens, take=True)
    assert http.get("/", headers=basic(reader)).status_code == 401
    assert http.get("/", headers=basic(trainer)).text == "page"

"""Log of requests: one line each, without data sent by a client."""

from __future__ import annotations

import json

import httpx
import pytest
from starlette.responses import PlainTextResponse, Response

from atroposlib.api.guards.auth import route_of, token_check
from atroposlib.api.guards.tokens import TokenFile, add_token
from atroposlib.api.run.metrics import Metrics
from atroposlib.api.web.request_log import RequestLog
from atroposlib.utils.command import logs
from atroposlib.utils.http.gate import NO_REPLY, Gate
from tests.logged import logged

__all__ = ["logged"]

MARKER = "marker-7c1f"


def recorded(app, *checks):
    return Gate(app, checks, route_of=route_of, record=RequestLog(Metrics()))


async def call(app, method="GET", path="/status", **more):
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        return await http.request(method, path, **more)


async def reads_all(scope, receive, send):
    body = b""
    while (message := await receive())["more_body"]:
        body += message["body"]
    await Response(body + message["body"], status_code=201)(scope, receive, send)


@pytest.mark.parametrize("style", logs.FORMATS)
async def test_a_request_is_logged_in_one_line_without_client_data(logged, style, tmp_path):
    text = logged(style)
    token = add_token(tmp_path / "tokens", "env")
    app = recorded(reads_all, token_check(TokenFile(tmp_path / "tokens")))
    reply = await call(
        app,
        "POST",
        f"/scored_data?q={MARKER}",
        content=MARKER,
        headers={"authorization": f"Bearer {token}", "x-more": MARKER, "cookie": MARKER},
    )
    assert reply.status_code == 201
    [line] = text().splitlines()
    assert MARKER not in line and token not in line
    if style == "json":
        event = json.loads(line)
        assert event["method"] == "POST" and event["route"] == "/scored_data"
        assert event["status"] == 201 and event["level"] == "debug"
        assert event["bytes_in"] == event["bytes_out"] == len(MARKER)
    else:
        assert " debug   run-api  request method=POST route=/scored_data" in line
        assert f"bytes_in={len(MARKER)}" in line


async def test_an_unknown_path_is_not_logged(logged):
    text = logged("text")
    await call(recorded(reads_all), path=f"/{MARKER}")
    assert "route=unknown" in text() and MARKER not in text()


@pytest.mark.parametrize(
    "status, level",
    [(200, "debug"), (307, "debug"), (422, "info"), (503, "info"), (500, "error")],
)
async def test_the_status_sets_the_log_level(logged, status, level):
    text = logged("json")
    await call(recorded(PlainTextResponse("x", status)))
    assert json.loads(text())["level"] == level


async def test_events_below_the_log_level_are_not_written(logged):
    text = logged("json", "info")
    await call(recorded(PlainTextResponse("x")))
    assert text() == ""


async def test_a_request_without_a_reply_is_logged_too(logged):
    text = logged("json")

    async def breaks(scope, receive, send):
        raise ConnectionResetError("no reply")

    await call(recorded(breaks))
    assert json.loads(text())["status"] == NO_REPLY

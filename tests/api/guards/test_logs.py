"""Log format: one event per line, without data sent by a client."""

from __future__ import annotations

import io
import json
import logging

import httpx
import pytest
from starlette.responses import PlainTextResponse, Response

from atroposlib.api.guards import logs
from atroposlib.api.guards.auth import AuthMiddleware
from atroposlib.api.guards.tokens import TokenFile, add_token
from atroposlib.utils.http_server import NO_REPLY

MARKER = "marker-7c1f"


@pytest.fixture
def logged():
    """Begin to log as run-api does; gives the text so far. Puts everything back after."""
    root, names = logging.getLogger(), ("atroposlib", "uvicorn")
    before = root.handlers[:], root.level, [logging.getLogger(n).level for n in names]
    # Tests that serve with uvicorn leave its loggers with handlers and levels of their own.
    uvicorn = [logging.getLogger(name) for name in ("uvicorn", "uvicorn.error")]
    kept = [(one.level, one.propagate) for one in uvicorn]
    for one in uvicorn:
        one.propagate = True
        one.setLevel(logging.NOTSET)
    stream = io.StringIO()

    def begin(style, level="debug"):
        logs.configure(style, level, stream)
        return stream.getvalue

    yield begin
    root.handlers[:], level, levels = before
    root.setLevel(level)
    for name, level in zip(names, levels):
        logging.getLogger(name).setLevel(level)
    for one, (level, one.propagate) in zip(uvicorn, kept):
        one.setLevel(level)


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
    app = logs.RequestLog(AuthMiddleware(reads_all, TokenFile(tmp_path / "tokens")))
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
        assert (
            "request logger=atroposlib.api.web.routing method=POST route=/scored_data" in line
        )
        assert f"bytes_in={len(MARKER)}" in line


async def test_an_unknown_path_is_not_logged(logged):
    text = logged("text")
    await call(logs.RequestLog(reads_all), path=f"/{MARKER}")
    assert "route=unknown" in text() and MARKER not in text()


@pytest.mark.parametrize(
    "status, level",
    [(200, "debug"), (307, "debug"), (422, "info"), (503, "info"), (500, "error")],
)
async def test_the_status_sets_the_log_level(logged, status, level):
    text = logged("json")
    await call(logs.RequestLog(PlainTextResponse("x", status)))
    assert json.loads(text())["level"] == level


async def test_events_below_the_log_level_are_not_written(logged):
    text = logged("json", "info")
    await call(logs.RequestLog(PlainTextResponse("x")))
    assert text() == ""


async def test_a_request_without_a_reply_is_logged_too(logged):
    text = logged("json")

    async def breaks(scope, receive, send):
        raise RuntimeError("no reply")

    await call(logs.RequestLog(breaks))
    assert json.loads(text())["status"] == NO_REPLY


@pytest.mark.parametrize("style", logs.FORMATS)
def test_secrets_in_texts_and_exceptions_are_redacted(logged, style):
    text = logged(style)
    token = "atr_" + "x" * 43
    log = logging.getLogger("atroposlib.api.test")
    log.warning("got %s", token)
    log.warning("header Authorization: Bearer abcdefghijkl, basic QWxhZGRpbjpvcGVu")
    try:
        raise ValueError(f"postgresql://me:{MARKER}@db/x refused {token}")
    except ValueError:
        log.exception("could not")
    assert token not in text() and "abcdefghijkl" not in text() and "QWxh" not in text()
    assert MARKER not in text() and "postgresql://[redacted]@db/x" in text()
    assert text().count(logs.REDACTED) >= 4


def test_control_characters_in_an_event_do_not_break_its_line(logged):
    text = logged("text")
    logging.getLogger("atroposlib.x").info(
        "a\nlevel=error\r\x1b[31m", extra={"fields": {"k": "v w"}}
    )
    [line] = text().split("\n")[:-1]
    assert r"a\nlevel=error\r\x1b[31m" in line and 'k="v w"' in line


def test_log_records_of_libraries_are_written_from_level_warning(logged):
    text = logged("text")
    logging.getLogger("httpx").info("quiet")
    logging.getLogger("uvicorn.error").info("quiet")
    logging.getLogger("uvicorn.error").warning("loud")
    assert "quiet" not in text() and "loud" in text()

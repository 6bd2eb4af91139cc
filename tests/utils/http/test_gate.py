"""The gate: order of checks, facts of a request, errors, record, headers and WebSockets."""

from __future__ import annotations

from contextlib import contextmanager

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse

from atroposlib.utils.http.gate import FACTS_KEY, NO_REPLY, Gate, require_gate


class Record:
    def __init__(self):
        self.open, self.ended = 0, []

    @contextmanager
    def __call__(self, facts, exchange):
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1
            counts = exchange.bytes_in, exchange.bytes_out
            self.ended.append((facts.route, exchange.status, *counts))


async def call(app, method="GET", path="/", **more):
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        return await http.request(method, path, **more)


def refusing(status):
    return lambda facts: PlainTextResponse("refused", status)


async def test_the_first_check_that_refuses_answers_and_the_body_is_not_read():
    async def app(scope, receive, send):
        raise AssertionError("not reached")

    seen = []
    checks = (seen.append, refusing(421), refusing(403))
    reply = await call(Gate(app, checks), "POST", content=b"body")
    assert reply.status_code == 421
    [facts] = seen
    assert (facts.method, facts.headers[b"content-length"]) == ("POST", b"4")


async def test_the_route_is_computed_once_and_checks_and_app_see_it():
    calls = []

    def route_of(method, path):
        calls.append((method, path))
        return "/items/{no}"

    def set_caller(facts):
        facts.caller = f"caller of {facts.route}"

    async def app(scope, receive, send):
        await PlainTextResponse(scope[FACTS_KEY].caller)(scope, receive, send)

    record = Record()
    gate = Gate(app, (set_caller,), route_of=route_of, record=record)
    assert (await call(gate, path="/items/7")).text == "caller of /items/{no}"
    assert calls == [("GET", "/items/7")]
    assert record.ended == [("/items/{no}", 200, 0, len("caller of /items/{no}"))]


async def test_a_refused_request_is_recorded():
    record = Record()
    await call(Gate(None, (refusing(403),), record=record))
    assert (record.open, record.ended[0][1]) == (0, 403)


async def raise_value_error(scope, receive, send):
    raise ValueError("wrong")


async def test_an_error_is_answered_by_the_responses_of_the_server():
    gate = Gate(
        raise_value_error, (), respond=lambda error, facts: PlainTextResponse(str(error), 409)
    )
    reply = await call(gate)
    assert (reply.status_code, reply.text) == (409, "wrong")


async def test_an_error_without_a_response_is_a_500_and_is_raised_to_the_server():
    record = Record()
    gate = Gate(raise_value_error, (), record=record)
    reply = await call(gate)
    assert (reply.status_code, reply.text) == (500, "Internal Server Error")
    with pytest.raises(ValueError):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(gate)) as http:
            await http.get("http://x/")
    assert [status for _, status, _, _ in record.ended] == [500, 500]


async def test_an_error_behind_the_first_byte_gets_no_second_response():
    async def pieces():
        yield b"half"
        raise ValueError("damaged")

    gate = Gate(
        StreamingResponse(pieces()),
        (),
        respond=lambda error, facts: PlainTextResponse("no", 409),
    )
    with pytest.raises(BaseException) as caught:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(gate)) as http:
            await http.get("http://x/")
    assert "damaged" in repr(caught.value) or "sub-exception" in str(caught.value)


async def test_a_client_that_hung_up_before_its_reply_is_recorded_as_499():
    async def app(scope, receive, send):
        raise ConnectionResetError

    record = Record()
    await call(Gate(app, (), record=record))
    assert record.ended[0][1] == NO_REPLY


async def test_headers_of_the_server_are_in_every_response_refusals_included():
    for checks, status in (((), 200), ((refusing(421),), 421)):
        gate = Gate(PlainTextResponse("in"), checks, headers=lambda: {"x-version": "7"})
        reply = await call(gate)
        assert (reply.status_code, reply.headers["x-version"]) == (status, "7")


@pytest.mark.parametrize(
    ("checks", "types"), [((), ["app"]), ((refusing(403),), ["websocket.close"])]
)
async def test_a_websocket_is_closed_by_a_check_and_passed_on_without_one(checks, types):
    sent = []

    async def send(message):
        sent.append(message["type"])

    async def app(scope, receive, send):
        await send({"type": "app"})

    await Gate(app, checks)({"type": "websocket", "path": "/ws", "headers": []}, None, send)
    assert sent == types


async def test_the_lifespan_is_neither_checked_nor_recorded():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    await Gate(app, (refusing(403),), record=Record())({"type": "lifespan"}, None, None)
    assert seen == ["lifespan"]


def test_an_app_needs_the_gate_as_its_first_layer():
    app = Starlette()
    with pytest.raises(TypeError, match="Starlette has no gate"):
        require_gate(app)
    app.middleware_stack = Gate(app.build_middleware_stack(), ())
    assert require_gate(app) is app

"""Clients that trickle, flood or never read, over real sockets against a real server."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace

import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from atroposlib.api.guards.body import BodyLimits, RequestBody
from atroposlib.api.guards.busy import BusyReplies
from atroposlib.api.guards.slow_clients import ReceiveLimits, SlowClientProtocol
from atroposlib.utils.http.gate import Gate

SHORT = ReceiveLimits(
    head_s=0.4, body_s=0.4, rest_s=0.4, idle_s=1, head_bytes=2000, headers=20
)
LONG = ReceiveLimits(head_bytes=2000, headers=20)
TRICKLE_S = 0.02  # many bytes come within each deadline, so only an absolute one ends it


class App:
    """Read the body if configured, then respond; count the received requests."""

    def __init__(self):
        self.bodies = []
        self.reads = True
        self.answer_at = asyncio.Event()
        self.answer_at.set()

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return
        body = b""
        while self.reads:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            if not message["more_body"]:
                break
        await self.answer_at.wait()
        self.bodies.append(body)
        await PlainTextResponse(f"{len(body)} bytes")(scope, receive, send)


@asynccontextmanager
async def serving(app, limits=LONG, busy=None, **settings):
    config = uvicorn.Config(
        app,
        port=0,
        http=type(
            "Limited", (SlowClientProtocol,), {"limits": limits, "busy": busy or BusyReplies()}
        ),
        lifespan="off",
        log_config=None,
        timeout_keep_alive=limits.idle_s,
        **settings,
    )
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # the signals belong to the test runner
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0)
    try:
        yield server, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await running


async def until_closed(reader):
    """All that comes before the server closes the connection, also by a reset."""
    received = b""
    with suppress(ConnectionResetError):
        while piece := await asyncio.wait_for(reader.read(2**16), 600):
            received += piece
    return received


async def trickle(port, start, drop):
    """Send ``start``, then ``drop`` until the server has had enough."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(start)
    closed = asyncio.create_task(until_closed(reader))
    try:
        while not closed.done():
            writer.write(drop)
            await asyncio.wait({closed}, timeout=TRICKLE_S)
    finally:
        writer.transport.abort()
    return await closed


async def ask(port, request):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await until_closed(reader)
    finally:
        writer.transport.abort()  # close() would wait for bytes that the server never reads


GET = b"GET / HTTP/1.1\r\nhost: x\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"connection: close\r\n\r\n"


@pytest.mark.alone
@pytest.mark.parametrize(
    "start, drop",
    [
        (b"", b""),
        (b"G", b"E"),
        (b"", b"\r\n"),
        (GET + b"x: ", b"a"),
        (POST, b"a"),
        (CHUNKED, b"1\r\na\r\n"),
    ],
    ids=["silence", "method", "newlines", "header", "body", "chunks"],
)
async def test_forty_slow_connections_are_all_closed(start, drop):
    app = App()
    async with serving(app, SHORT) as (server, port):
        replies = await asyncio.gather(*(trickle(port, start, drop) for _ in range(40)))
        assert (await ask(port, GET + LAST)).endswith(b"0 bytes")
        while server.server_state.connections:
            await asyncio.sleep(0)
    assert app.bodies == [b""]
    told = [reply for reply in replies if reply]  # bytes they send meanwhile may consume it
    assert all(reply.startswith(b"HTTP/1.1 40") for reply in told)
    assert drop or len(told) == 40


@pytest.mark.alone
def test_slow_connections_are_closed_under_the_other_event_loop():
    loop = pytest.importorskip("uvloop").new_event_loop()
    try:
        loop.run_until_complete(test_forty_slow_connections_are_all_closed(POST, b"a"))
    finally:
        loop.close()


@pytest.mark.alone
async def test_an_idle_connection_is_closed_also_while_newlines_arrive():
    async with serving(App(), SHORT) as (_, port):
        reply = await trickle(port, GET + b"\r\n", b"\r\n")
        assert reply.endswith(b"0 bytes") and reply.count(b"HTTP/1.1") == 1


@pytest.mark.alone
async def test_a_rejected_upload_is_answered_and_its_rest_is_read_within_a_time_limit():
    app = App()
    app.reads = False
    async with serving(app, SHORT) as (_, port):
        reply = await trickle(port, POST, b"a")
        assert reply.endswith(b"0 bytes")


async def test_the_connection_stays_open_after_a_rejected_upload_that_ends_soon():
    app = App()
    app.reads = False
    async with serving(app) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(POST)
        assert await reader.readuntil(b"0 bytes")
        writer.write(b"a" * 10**6)
        app.reads = True
        writer.write(GET + LAST)
        assert (await until_closed(reader)).endswith(b"0 bytes")
        writer.close()


@pytest.mark.alone
async def test_a_slow_application_is_not_counted_as_a_slow_client():
    app = App()
    app.answer_at.clear()
    async with serving(app, SHORT) as (_, port):
        asked = asyncio.create_task(ask(port, GET + LAST))
        # Another connection measures the time: its deadline is the same and passes first.
        await trickle(port, POST, b"a")
        await trickle(port, POST, b"a")
        app.answer_at.set()
        assert (await asked).endswith(b"0 bytes")


@pytest.mark.alone
async def test_time_in_which_the_application_does_not_read_is_not_charged_to_the_client():
    app = App()
    app.reads = False
    app.answer_at.clear()
    async with serving(app, SHORT) as (_, port):
        # More than the server takes ahead of the application, so it stops reading.
        asked = asyncio.create_task(ask(port, POST + b"a" * 500_000))
        await trickle(port, GET + b"x: ", b"a")
        await trickle(port, GET + b"x: ", b"a")
        app.answer_at.set()
        assert b"200 OK" in await asked


@pytest.mark.parametrize(
    "request_",
    [
        GET + b"x: 1\r\n" * 30 + b"\r\n",
        GET + b"x: " + b"a" * 3000 + b"\r\n\r\n",
        GET + b"x: " + b"a" * 300_000,  # never ends
        b"GET /" + b"a" * 3000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
    ids=["many", "long", "endless", "address"],
)
async def test_a_request_head_beyond_the_limits_is_rejected_and_not_served(request_):
    app = App()
    async with serving(app) as (_, port):
        reply = await ask(port, request_)
        assert reply == b"" or reply.startswith(b"HTTP/1.1 431")  # a reset may eat the reply
    assert app.bodies == []


async def test_endless_trailers_are_rejected():
    async with serving(App()) as (_, port):
        reply = await trickle(port, CHUNKED + b"0\r\nx: ", b"a" * 1000)
        assert reply == b"" or reply.startswith(b"HTTP/1.1 431")


async def test_a_large_body_in_tiny_chunks_is_accepted():
    app = App()
    async with serving(app) as (_, port):
        chunks = b"1\r\na\r\n" * 50_000 + b"0\r\n\r\n"
        request = CHUNKED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        assert (await ask(port, request + chunks)).endswith(b"50000 bytes")


async def test_pipelined_requests_are_answered_in_order():
    app = App()
    async with serving(app) as (_, port):
        one = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nab"
        reply = await ask(port, one + one + GET + LAST)
        assert reply.count(b"200 OK") == 3 and app.bodies == [b"ab", b"ab", b""]


def body_of(size, more=b""):
    return POST.replace(b"1000000", b"%d" % size).replace(b"\r\n\r\n", b"\r\n%b\r\n" % more)


@pytest.mark.alone
async def test_a_body_that_stalls_ends_the_connection_without_an_answer():
    app = App()
    async with serving(app, SHORT) as (_, port):
        assert await ask(port, POST + b"a") == b""
        assert await trickle(port, POST, b"a") == b""
    assert app.bodies == []


async def test_a_body_beyond_the_stricter_deadline_of_the_application_is_not_answered_either():
    async with serving(Gate(RequestBody(App(), BodyLimits(grace_s=0.1)), ())) as (_, port):
        assert await ask(port, body_of(1000) + b"a") == b""


async def test_a_client_that_waits_for_a_continue_is_told_to():
    app = App()
    async with serving(app) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(body_of(200_000, b"expect: 100-continue\r\n"))
        assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"a" * 200_000)
        assert b"200 OK" in await reader.readuntil(b"200000 bytes")
        writer.close()


@pytest.mark.parametrize(
    "request_",
    [
        b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",  # TLS to a port that speaks plain HTTP
        b"\x00" * 100,
    ],
)
async def test_an_invalid_http_request_is_rejected(request_):
    app = App()
    async with serving(app) as (_, port):
        assert (await ask(port, request_)).startswith(b"HTTP/1.1 400")
    assert app.bodies == []


async def test_requests_beyond_the_limit_are_answered_503_posts_before_other_calls():
    app = App()
    app.answer_at.clear()
    busy = BusyReplies()
    async with serving(app, busy=busy, limit_concurrency=4) as (server, port):
        held = [asyncio.create_task(ask(port, GET + LAST)) for _ in range(4)]
        while len(server.server_state.tasks) < 4:
            await asyncio.sleep(0)
        post = b"POST /groups HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n[]"
        refused = await ask(port, post)
        assert refused.startswith(b"HTTP/1.1 503") and b"retry-after: " in refused
        assert b"--max-connections" in refused and busy.count == 1
        held.append(asyncio.create_task(ask(port, GET + LAST)))
        while len(server.server_state.tasks) < 5:
            await asyncio.sleep(0)
        assert (await ask(port, GET + LAST)).startswith(b"HTTP/1.1 503")
        app.answer_at.set()
        assert all(reply.endswith(b"0 bytes") for reply in await asyncio.gather(*held))


async def test_a_connection_beyond_all_others_is_answered_503_and_closed():
    app = App()
    app.answer_at.clear()
    async with serving(app, replace(LONG, sockets=2)) as (server, port):
        held = [asyncio.create_task(ask(port, GET + LAST)) for _ in range(2)]
        while len(server.server_state.tasks) < 2:
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET + LAST)
        answer = await reader.readuntil(b"connections\n")
        assert answer.startswith(b"HTTP/1.1 503") and b"retry-after: " in answer
        assert int(answer.split(b"content-length: ")[1].split()[0]) == 21
        assert await until_closed(reader) == b""
        writer.close()
        app.answer_at.set()
        assert all(reply.endswith(b"0 bytes") for reply in await asyncio.gather(*held))

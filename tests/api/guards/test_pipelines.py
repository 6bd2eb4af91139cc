"""Requests that follow each other before a reply, as uvicorn's protocol over h11 serves them."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager, nullcontext

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from atroposlib.api.guards.body import RequestBody
from atroposlib.api.guards.slow_clients import SlowClientProtocol
from atroposlib.utils.http.gate import Gate
from atroposlib.utils.http.protocol import head_deadline

SIZES = (0, 1, 100, 20_000, 66_000, 240_000)


class Echo:
    """Answers each request with its method, path and body, and keeps them in order."""

    def __init__(self):
        self.received = []

    async def __call__(self, scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"") + b"".join(message.get("pieces", ()))
            more = message.get("more_body", False)
        self.received.append((scope["method"], scope["path"], body))
        text = (
            f"{scope['method']} {scope['path']} {len(body)}\n".encode()
            + body[:50]
            + body[-50:]
        )
        await PlainTextResponse(text)(scope, receive, send)


@asynccontextmanager
async def serving(app, protocol):
    config = uvicorn.Config(app, port=0, http=protocol, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # the signals belong to the test runner
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await running


def a_request(random, number, last):
    """The bytes of a request with a body of its own."""
    size = random.choice(SIZES)
    body = random.randbytes(size // 2).hex().encode()
    kind = random.choice(["get", "length", "chunked"])
    head = f"{'GET' if kind == 'get' else 'POST'} /{number} HTTP/1.1\r\nhost: x\r\n"
    upgrade = random.choice(["", "", "", "h2c", "other/1"])  # as Java's client asks for
    options = ["close"] * last + ["Upgrade, HTTP2-Settings"] * bool(upgrade)
    if options:
        head += f"connection: {', '.join(options)}\r\n"
    if upgrade:
        head += f"upgrade: {upgrade}\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n"
    if kind != "get" and size and random.random() < 0.2:
        head += "expect: 100-continue\r\n"
    if kind == "get":
        return head.encode() + b"\r\n"
    if kind == "length":
        return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
    chunks = b""
    while body:
        piece, body = body[: (n := random.randint(1, 30_000))], body[n:]
        chunks += b"%x\r\n%b\r\n" % (len(piece), piece)
    return head.encode() + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def a_pipeline(seed):
    """The segments in which a client sends one to four requests, whatever was answered."""
    drawn = random.Random(seed)
    count = drawn.randint(1, 4)
    sent = b"".join(a_request(drawn, i, last=i == count - 1) for i in range(count))
    cuts = sorted(drawn.sample(range(len(sent)), k=min(len(sent), drawn.randint(0, 6))))
    return [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)])]


async def replies_to(port, segments):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    reading = asyncio.create_task(reader.read())
    for segment in segments:
        writer.write(segment)
        await writer.drain()
        for _ in range(3):
            await asyncio.sleep(0)  # the server may see the segment before the next
    received = await asyncio.wait_for(reading, 600)
    writer.close()
    return received.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")


def statuses_and_bodies(received):
    """What the client of a connection reads, reply by reply."""
    replies = []
    while received:
        head, _, rest = received.partition(b"\r\n\r\n")
        lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        size = int(lines[b"content-length"])
        replies.append((head[:15], lines.get(b"connection"), rest[:size]))
        received = rest[size:]
    return replies


async def compare(seeds, protocol=SlowClientProtocol):
    ours, theirs = Echo(), Echo()
    app = Gate(RequestBody(ours), ()) if protocol is SlowClientProtocol else ours
    async with (
        serving(app, protocol) as port,
        serving(theirs, H11Protocol) as other_port,
    ):
        for seed in seeds:
            segments = a_pipeline(seed)
            expected = await replies_to(other_port, segments)
            got = await replies_to(port, segments)
            assert ours.received == theirs.received, f"seed {seed}"
            assert statuses_and_bodies(got) == statuses_and_bodies(expected), f"seed {seed}"
            ours.received.clear()
            theirs.received.clear()


async def test_pipelines_are_served_as_over_h11():
    await compare(range(40))


async def test_pipelines_to_the_other_servers_are_served_as_over_h11():
    await compare(range(80, 110), head_deadline())


def test_pipelines_are_served_as_over_h11_under_the_other_event_loop():
    loop = pytest.importorskip("uvloop").new_event_loop()
    try:
        loop.run_until_complete(compare(range(40, 80)))
    finally:
        loop.close()


@pytest.mark.parametrize(
    "broken", [b"BROKEN\r\n\r\n", b"GET / HTTP/1.1\r\nx: " + b"a" * 40_000]
)
async def test_an_invalid_request_is_refused_after_the_reply_to_the_one_before(broken):
    class Slow(Echo):
        may_answer = asyncio.Event()

        async def __call__(self, scope, receive, send):
            await self.may_answer.wait()
            await super().__call__(scope, receive, send)

    async with serving(app := Slow(), SlowClientProtocol) as port:
        first = b"POST /first HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nab"
        replies = asyncio.create_task(replies_to(port, [first + broken]))
        for _ in range(20):
            await asyncio.sleep(0)
        app.may_answer.set()
        assert (await replies).startswith(b"HTTP/1.1 200 OK")
    assert app.received == [("POST", "/first", b"ab")]


async def test_a_client_that_leaves_with_two_requests_in_progress_raises_nothing(caplog):
    received, answer = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        await receive()
        received.set()
        await answer.wait()
        await PlainTextResponse("late")(scope, receive, send)
        ended.set()

    ended = asyncio.Event()
    async with serving(app, SlowClientProtocol) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 2)
        await asyncio.wait_for(received.wait(), 600)
        writer.transport.abort()
        for _ in range(20):
            await asyncio.sleep(0)
        answer.set()
        await asyncio.wait_for(ended.wait(), 600)
    assert not [record for record in caplog.records if record.exc_info]

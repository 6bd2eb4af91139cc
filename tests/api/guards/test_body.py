"""Request bodies: completeness, decompression and size limits."""

from __future__ import annotations

import asyncio
import gzip
import json
import random

import pytest
import zstandard
from starlette.responses import PlainTextResponse

from atroposlib.api.guards.body import (
    DEFAULT_LIMITS,
    SMALL_BYTES,
    TURN_KEY,
    BodyLimits,
    RequestBody,
)
from atroposlib.utils.http.gate import Gate
from atroposlib.utils.http.web_pages import site_check
from atroposlib.wire.binary import ZSTD_MAGIC

BIG = SMALL_BYTES + 1


def bounded(app, **limits):
    """The body layer behind a gate without checks."""
    return Gate(RequestBody(app, BodyLimits(**limits)), ())


class Exchange:
    """One request through the middleware, fed piece by piece."""

    def __init__(self, middleware, pieces=(b"",), method="POST", path="/groups", **headers):
        named = [(k.replace("_", "-").encode(), str(v).encode()) for k, v in headers.items()]
        self.scope = {"type": "http", "method": method, "path": path, "headers": named}
        self.middleware, self.replies = middleware, []
        self.incoming = asyncio.Queue()
        for i, piece in enumerate(pieces):
            more = i + 1 < len(pieces)
            self.feed({"type": "http.request", "body": piece, "more_body": more})

    def feed(self, message):
        self.incoming.put_nowait(message)

    async def send(self, message):
        self.replies.append(message)

    async def run(self):
        await self.middleware(self.scope, self.incoming.get, self.send)
        return self

    @property
    def status(self):
        return self.replies[0]["status"]

    @property
    def headers(self):
        return dict(self.replies[0]["headers"])

    @property
    def detail(self):
        return json.loads(self.replies[1]["body"])["detail"]


class App:
    """Record the received body; respond only after permission."""

    def __init__(self):
        self.bodies, self.headers, self.may_end = [], [], asyncio.Event()
        self.turns = []
        self.may_end.set()

    async def __call__(self, scope, receive, send):
        message = await receive()
        assert message["more_body"] is False
        self.bodies.append(b"".join(message.get("pieces", [message["body"]])))
        self.headers.append(dict(scope["headers"]))
        self.turns.append(scope.get(TURN_KEY))
        await self.may_end.wait()


@pytest.fixture
def app():
    return App()


async def test_a_body_of_one_chunk_is_not_copied(app):
    piece = b"x" * 1000
    await Exchange(bounded(app), [piece], content_length=1000).run()
    assert app.bodies[0] is piece


async def test_the_chunks_of_a_body_are_joined(app):
    await Exchange(bounded(app), [b"ab", b"", b"cd"]).run()
    assert app.bodies == [b"abcd"]


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "zstd"])
async def test_a_compressed_body_is_decompressed(app, encoding):
    pack = zstandard.ZstdCompressor().compress if encoding == "zstd" else gzip.compress
    packed = pack(b"tokens" * 100)
    sent = {"content_encoding": encoding, "content_length": len(packed)}
    await Exchange(bounded(app), [packed], **sent).run()
    assert app.bodies == [b"tokens" * 100]


async def test_a_group_in_a_zstd_frame_is_not_decompressed(app):
    frame = zstandard.ZstdCompressor().compress(b"a group")
    sent = {"content_encoding": "zstd", "content_type": "application/x-safetensors"}
    await Exchange(bounded(app), [frame], **sent).run()
    assert app.bodies == [frame] and frame.startswith(ZSTD_MAGIC)
    assert app.headers[0][b"content-encoding"] == b"zstd"


async def test_damaged_compression_is_a_400(app):
    got = await Exchange(bounded(app), [b"no gzip"], content_encoding="gzip").run()
    assert (got.status, got.replies[1]["body"]) == (400, b"Invalid gzip payload")
    got = await Exchange(bounded(app), [b"no zstd"], content_encoding="zstd").run()
    assert (got.status, app.bodies) == (400, [])


async def test_a_body_whose_declared_sent_or_inflated_size_exceeds_the_limit_is_rejected(app):
    limited = bounded(app, post_bytes=100)
    declared = Exchange(limited, [b"x"], content_length=101)
    assert (await declared.run()).status == 413 and not declared.incoming.empty()
    assert (await Exchange(limited, [b"x" * 60] * 2).run()).status == 413
    dense = Exchange(limited, [gzip.compress(b"x" * 101)], content_encoding="gzip")
    assert (await dense.run()).status == 413
    assert dense.headers[b"connection"] == b"close" and app.bodies == []


async def test_a_control_message_is_bounded_by_its_own_limit(app):
    limited = bounded(app)
    large = Exchange(
        limited, path="/register", content_length=DEFAULT_LIMITS.control_bytes + 1
    )
    assert (await large.run()).status == 413 and app.bodies == []
    await Exchange(
        limited, [b"x"], path="/register", content_length=DEFAULT_LIMITS.control_bytes
    ).run()
    assert app.bodies == [b"x"]


@pytest.mark.parametrize("encoding", ["gzip", "zstd", None])
async def test_a_large_body_arrives_in_pieces_whole(app, encoding):
    body = random.Random(1).randbytes(3 * 2**20) + bytes(2**20)
    packed = PACKERS[encoding](body)
    named = {"content_encoding": encoding} if encoding else {}
    half = len(packed) // 2
    await Exchange(bounded(app), [packed[:half], packed[half:]], **named).run()
    assert app.bodies == [body]


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_damage_in_a_large_body_is_a_400(app, encoding):
    packed = PACKERS[encoding](bytes(5 * 2**20))[:-1]
    if encoding == "gzip":  # whose last four bytes declare the size
        packed = packed[:-7] + (5 * 2**20).to_bytes(4, "little")
    got = await Exchange(bounded(app), [packed], content_encoding=encoding).run()
    assert (got.status, app.bodies) == (400, [])


PACKERS = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    None: bytes,
}


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_cross_site_request_does_not_reach_the_app(app, site):
    check = site_check(lambda code, why: PlainTextResponse(why, code))
    guarded = Gate(bounded(app).app, (check,))
    got = await Exchange(guarded, method="GET", sec_fetch_site=site).run()
    assert got.status == 403 and app.bodies == []


async def test_a_body_that_never_arrives_times_out(app):
    silent = Exchange(bounded(app, grace_s=0.01), [])
    assert (await silent.run()).status == 408


async def test_a_disconnected_client_gets_no_response(app):
    gone = Exchange(bounded(app), [])
    gone.feed({"type": "http.request", "body": b"half", "more_body": True})
    gone.feed({"type": "http.disconnect"})
    assert (await gone.run()).replies == [] and app.bodies == []


# --- bytes in flight ----------------------------------------------------------------------


async def settled():
    for _ in range(20):
        await asyncio.sleep(0)


async def test_large_bodies_wait_for_memory_and_small_ones_do_not(app):
    middleware = bounded(app, post_bytes=BIG, in_flight_bytes=2 * BIG)
    app.may_end.clear()
    large = [Exchange(middleware, [b"x" * BIG], content_length=BIG) for _ in range(3)]
    running = [asyncio.create_task(one.run()) for one in large]
    await settled()
    assert len(app.bodies) == 2 and not large[2].incoming.empty()
    small = asyncio.create_task(Exchange(middleware, [b"small"]).run())
    await settled()
    assert app.bodies[-1] == b"small"
    app.may_end.set()
    await asyncio.gather(*running, small)
    assert len(app.bodies) == 4


async def test_a_body_without_memory_in_time_gets_a_503(app):
    middleware = bounded(app, post_bytes=BIG, in_flight_bytes=BIG, memory_s=0.01)
    app.may_end.clear()
    large = [Exchange(middleware, [b"x" * BIG], content_length=BIG) for _ in range(3)]
    running = [asyncio.create_task(one.run()) for one in large]
    refused = await running[2]
    assert refused.status == 429 and 5 <= int(refused.headers[b"retry-after"]) <= 10
    app.may_end.set()
    await asyncio.gather(*running)
    assert len(app.bodies) == 2


@pytest.mark.parametrize("streams", [True, False])
async def test_bodies_without_content_length_and_compressed_bodies_reserve_memory(
    app, streams
):
    middleware = bounded(app, post_bytes=3 * BIG, in_flight_bytes=6 * BIG, memory_s=0.01)
    app.may_end.clear()

    def one():
        if streams:
            return Exchange(middleware, [b"x" * BIG] * 3)
        packed = gzip.compress(b"x" * 3 * BIG)
        return Exchange(middleware, [packed], content_encoding="gzip")

    running = [asyncio.create_task(one().run()) for _ in range(3)]
    done, pending = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result().status for task in done] == [429]
    app.may_end.set()
    await asyncio.gather(*pending)
    assert len(app.bodies) == 2


async def test_posts_that_have_arrived_wait_for_their_turn_and_other_calls_do_not(app):
    middleware = bounded(app, posts_at_once=1)
    app.may_end.clear()
    posts = [Exchange(middleware, [b"%d" % i]) for i in range(3)]
    running = [asyncio.create_task(one.run()) for one in posts]
    await settled()
    assert app.bodies == [b"0"]
    claim = asyncio.create_task(Exchange(middleware, path="/batches/claim").run())
    await settled()
    assert app.bodies == [b"0", b""]
    app.turns[0].give_back()  # as a post does that is held for space
    await settled()
    assert app.bodies == [b"0", b"", b"1"]
    app.may_end.set()
    await asyncio.gather(*running, claim)
    assert app.bodies == [b"0", b"", b"1", b"2"]


@pytest.mark.parametrize(("path", "status"), [("/groups", 429), ("/scored_data", 503)])
async def test_a_post_without_a_turn_in_time_is_told_when_to_come_back(app, path, status):
    middleware = bounded(app, posts_at_once=1, line_s=0.01)
    app.may_end.clear()
    first = asyncio.create_task(Exchange(middleware, [b"x"], path=path).run())
    await settled()
    refused = await Exchange(middleware, [b"x"], path=path).run()
    assert refused.status == status and 5 <= int(refused.headers[b"retry-after"]) <= 10
    app.may_end.set()
    await first


async def test_a_post_whose_body_does_not_come_holds_no_turn(app):
    middleware = bounded(app, posts_at_once=1)
    silent = [Exchange(middleware, [], content_length=100) for _ in range(3)]
    held = [asyncio.create_task(post.run()) for post in silent]
    await settled()
    await Exchange(middleware, [b"whole"]).run()
    assert app.bodies == [b"whole"]
    for post in silent:
        post.feed({"type": "http.disconnect"})
    await asyncio.gather(*held)


# What the others have sent when the post comes, of what they declare; None: they declare nothing.
SLOW = {
    "nothing": (100, 0),
    "a few bytes": (100, 10),
    "a few bytes of a chunked body": (None, 10),
    "nothing of a large body": (40 * BIG, 0),
    "the first bytes of a large body": (40 * BIG, 2 * BIG),
    "most of a large body": (40 * BIG, 39 * BIG),
    "most of a large chunked body": (None, 39 * BIG),
}


@pytest.mark.parametrize("size", [10, 3 * BIG, 20 * BIG])
@pytest.mark.parametrize("slow", SLOW.values(), ids=SLOW)
async def test_slow_senders_keep_no_other_post_waiting(app, slow, size):
    middleware = bounded(app, post_bytes=40 * BIG, in_flight_bytes=80 * BIG, posts_at_once=2)
    declared, sent = slow
    headers = {} if declared is None else {"content_length": declared}
    senders = [Exchange(middleware, [], **headers) for _ in range(30)]
    held = [asyncio.create_task(sender.run()) for sender in senders]
    for sender in senders:
        for start in range(0, sent, BIG):
            piece = b"x" * min(BIG, sent - start)
            sender.feed({"type": "http.request", "body": piece, "more_body": True})
    await settled()
    post = Exchange(middleware, [b"y" * BIG] * (size // BIG), content_length=size)
    if size < BIG:
        post = Exchange(middleware, [b"y" * size], content_length=size)
    await asyncio.wait_for(post.run(), 60)
    assert app.bodies == [b"y" * (size // BIG * BIG if size >= BIG else size)]
    for sender in senders:
        sender.feed({"type": "http.disconnect"})
    await asyncio.gather(*held)
    whole = middleware.app._memory.arrival(40 * BIG)
    with whole:  # nothing is held any more
        await asyncio.wait_for(whole.reserve(40 * BIG), 60)


@pytest.mark.parametrize("declares", [True, False])
async def test_bodies_that_arrive_at_speed_all_get_their_turn(app, declares):
    middleware = bounded(app, post_bytes=40 * BIG, in_flight_bytes=80 * BIG)
    headers = {"content_length": 30 * BIG} if declares else {}
    posts = [Exchange(middleware, [b"y" * BIG] * 30, **headers) for _ in range(2)]
    await asyncio.gather(*(post.run() for post in posts))
    assert [len(body) for body in app.bodies] == [30 * BIG] * 2

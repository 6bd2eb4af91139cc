"""Streaming of batches: correct bytes in the requested form, complete or aborted."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import threading
from dataclasses import replace

import httpx
import msgspec
import pytest

from atroposlib.api.codec import read_group
from atroposlib.api.codec.delivery import Encoding, accepted_encoding, json_of
from atroposlib.api.codec.json_group import KEYS
from atroposlib.api.common.pools import Pool
from atroposlib.api.common.records import BatchMember, Delivery, LeasedBatch
from atroposlib.api.web.streaming import (
    ABORT_EXTENSION,
    CHUNK_BYTES,
    LAST_BYTES,
    WINDOW_BYTES,
    DeliveryReply,
)
from atroposlib.errors import CorruptPayload
from atroposlib.wire import ClaimedBatch
from atroposlib.wire.binary import pack_group, split_frames, unpack_group
from tests.api.guards.test_slow_clients import serving

FRAMES = "application/x-atropos-groups"
HEAD, TAIL = b'{"batch_no":7,"epoch":2,"batch":[', b'],"blocked_reason":null}'
FORMS = ("json", "safetensors", "safetensors+zstd")  # of posts


def group(mark=1, **more):
    return {
        "tokens": [[mark, 5, 9], [2, 7]],
        "masks": [[-100, 5, 9], [-100, 7]],
        "scores": [0.1, -1],
        "inference_logprobs": [[1.0, -0.5, -0.25], [1.0, -2]],
        "messages": [[], [{"role": "user", "content": "é"}]],
    } | more


class Shelf:
    """Payloads by gid, as a store would read them."""

    def __init__(self, *groups, forms=None):
        self.payloads, self.members, self.damaged, self.reads = {}, [], set(), []
        for gid, group in enumerate(groups):
            self.keep(gid, group, (forms or ["json"] * len(groups))[gid])

    def keep(self, gid, group, form):
        body, kind = json.dumps(group).encode(), "application/json"
        if form != "json":
            body = pack_group(group, compress=form == "safetensors+zstd")
            kind = "application/x-safetensors"
        got = read_group(body, kind)
        assert got.posted_as == form
        self.payloads[gid] = got.payload
        self.members.append(
            BatchMember(
                gid,
                None,
                got.n_seq,
                got.n_tokens,
                got.version,
                n_bytes=len(got.payload),
            )
        )

    def read(self, gids):
        self.reads.append(list(gids))
        if bad := [gid for gid in gids if gid in self.damaged]:
            raise CorruptPayload(bad)
        return [self.payloads[gid] for gid in gids]

    def delivery(self, **more):
        batch = LeasedBatch(no=7, epoch=2, generation=1, members=tuple(self.members), **more)
        return Delivery(batch, batch.members)


class Client:
    """Receiving client, which may disconnect or stop reading."""

    def __init__(self, hangs_up_after=None, stops_after=None, version="1.1"):
        self.version = version
        self.sent, self.told, self.aborted = [], [], False
        self.hangs_up_after, self.stops_after = hangs_up_after, stops_after
        self.hung_up, self.finished = asyncio.Event(), asyncio.Event()

    async def receive(self):
        await self.hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        if len(self.sent) == self.stops_after:
            await asyncio.Event().wait()
        self.sent.append(message)
        if len(self.sent) == self.hangs_up_after or self.whole:
            self.hung_up.set()

    def abort(self):
        self.aborted = True

    async def end(self, sent):
        self.told += [("sent",)] * sent
        self.finished.set()

    async def note(self, *what):
        self.told.append(what)

    async def get(self, shelf, accept="*/*", delivery=None, **more):
        reply = DeliveryReply(
            shelf,
            delivery or shelf.delivery(),
            Pool(4),
            accept=accept,
            head=HEAD,
            tail=TAIL,
            on_end=self.end,
            on_corrupt=lambda error: self.note("corrupt", error.gids),
            **more,
        )
        extensions = {ABORT_EXTENSION: {"now": self.abort}}
        scope = {"type": "http", "http_version": self.version, "method": "POST"}
        scope["extensions"] = extensions
        await reply(scope, self.receive, self.send)
        assert self.finished.is_set()
        return self

    @property
    def whole(self):
        return self.sent[-1].get("more_body") is False

    @property
    def headers(self):
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self):
        return b"".join(message["body"] for message in self.sent[1:])

    @property
    def batch(self):
        assert self.whole and self.told == [("sent",)]
        if self.headers["content-type"] == FRAMES:
            return [unpack_group(one) for one in split_frames(self.body)]
        for one in json.loads(self.body)["batch"]:
            assert set(one) == set(KEYS)
        return msgspec.json.decode(self.body, type=ClaimedBatch).batch


async def test_json_is_written_from_the_stored_files():
    shelf = Shelf(group(1), group(2))
    got = await Client().get(shelf)
    groups = b",".join(b"".join(json_of(payload)) for payload in shelf.payloads.values())
    assert got.body == HEAD + groups + TAIL
    assert (got.headers["x-atropos-batch"], got.headers["x-atropos-epoch"]) == ("7", "2")
    assert [one.tokens[0][0] for one in got.batch] == [1, 2]


async def test_stored_files_are_sent_unchanged_with_their_length():
    shelf = Shelf(group(1), group(2), group(3), forms=FORMS)
    got = await Client().get(shelf, f"application/json;q=0.5, {FRAMES}")
    assert list(map(bytes, split_frames(got.body))) == list(shelf.payloads.values())
    assert got.headers["content-length"] == str(len(got.body))
    assert got.headers["x-atropos-batch"] == "7" and len(got.batch) == 3


@pytest.mark.parametrize("accept", ["*/*", FRAMES])
async def test_each_group_is_written_in_the_requested_form(accept):
    shelf = Shelf(*[group(i, env_id=i, group_id="g") for i in range(3)], forms=FORMS)
    got = await Client().get(shelf, accept)
    plain = await Client().get(Shelf(*[group(i, env_id=i, group_id="g") for i in range(3)]))
    assert got.batch == plain.batch


@pytest.mark.parametrize("accept", ["*/*", FRAMES])
@pytest.mark.parametrize("form", FORMS)
async def test_tokens_older_than_the_batch_allows_are_masked(accept, form):
    old = group(versions=[[-1, 3, 4], [-1, -1]])  # the last token has no version
    shelf = Shelf(old, group(versions=[[-1, 4, 4], [-1, 5]]), forms=[form] * 2)
    got = await Client().get(shelf, accept, shelf.delivery(min_version=4))
    masked, kept = got.batch
    assert masked.masks == [[-100, -100, 9], [-100, 7]]
    assert masked.versions == [[-1, -1, 4], [-1, -1]]
    assert masked.inference_logprobs == [[1.0, 1.0, -0.25], [1.0, -2.0]]
    assert (masked.scores, masked.tokens) == ([0.1, -1.0], [[1, 5, 9], [2, 7]])
    assert kept.versions == [[-1, 4, 4], [-1, 5]] and kept.masks[0] == [-100, 5, 9]


async def test_the_age_of_a_group_without_versions_counts_from_its_arrival():
    shelf = Shelf(group(), group())
    for i, arrived in enumerate([3, 4]):
        shelf.members[i] = replace(shelf.members[i], version=None, arrived_version=arrived)
    masked, kept = (await Client().get(shelf, "*/*", shelf.delivery(min_version=4))).batch
    assert masked.masks == [[-100] * 3, [-100] * 2] and masked.inference_logprobs[1] == [1, 1]
    assert kept.masks == [[-100, 5, 9], [-100, 7]]


@pytest.mark.parametrize("accept", ["*/*", FRAMES])
async def test_a_shard_may_be_empty(accept):
    assert (await Client().get(Shelf(), accept)).batch == []


def large(gid):
    text = base64.b64encode(random.Random(gid).randbytes(3 * WINDOW_BYTES // 2)).decode()
    return group(gid, metadata={"text": text})  # zstd takes a quarter off


async def test_large_groups_are_sent_in_chunks_and_one_group_is_read_ahead():
    shelf = Shelf(*[large(i) for i in range(4)])
    got = await Client().get(shelf)
    assert max(len(message["body"]) for message in got.sent[1:]) == CHUNK_BYTES - LAST_BYTES
    assert shelf.reads == [[0], [1], [2], [3]] and len(got.batch) == 4
    stuck = await Client(stops_after=2).get(shelf, send_timeout_s=0.2)
    assert shelf.reads[4:] == [[0], [1]] and not stuck.whole


@pytest.mark.parametrize(("version", "is_named"), [("1.0", True), ("1.1", False)])
async def test_a_long_body_of_json_names_its_length_to_clients_without_chunks(
    version, is_named
):
    got = await Client(version=version).get(Shelf(*[large(i) for i in range(2)]))
    assert ("content-length" in got.headers) == is_named and len(got.batch) == 2
    assert not is_named or got.headers["content-length"] == str(len(got.body))


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_a_body_of_one_window_names_its_length(version):
    shelf = Shelf(group(1), group(2))
    got = await Client(version=version).get(shelf)
    assert got.headers["content-length"] == str(len(got.body)) and len(got.batch) == 2
    assert len(shelf.reads) == (2 if version == "1.0" else 1)


async def test_small_groups_are_read_together():
    shelf = Shelf(*[group(i) for i in range(50)])
    await Client().get(shelf)
    assert len(shelf.reads) == 1


async def test_reads_do_not_block_the_event_loop():
    shelf = Shelf(group())
    threads = []
    read = shelf.read
    shelf.read = lambda gids: (threads.append(threading.current_thread()), read(gids))[1]
    await Client().get(shelf)
    assert threads and threads[0] is not threading.main_thread()


# --- failures -----------------------------------------------------------------------------


async def test_a_damaged_group_aborts_the_reply():
    shelf = Shelf(*[large(i) for i in range(3)])
    shelf.damaged = {2}
    got = await Client().get(shelf)
    assert got.told == [("corrupt", (2,))] and got.aborted and not got.whole


async def test_damage_found_before_the_reply_starts_is_a_503():
    shelf = Shelf(group(), group(), group())
    shelf.damaged = {0, 1}
    got = await Client().get(shelf)
    assert got.told == [("corrupt", (0, 1))] and not got.aborted
    assert got.sent[0]["status"] == 503 and json.loads(got.body)["status"] == "corrupt_payload"


async def test_bytes_that_do_not_decode_to_a_group_count_as_damaged():
    shelf = Shelf(group())
    shelf.payloads[0] = b'{"tokens":'
    assert (await Client().get(shelf, "*/*")).told == [("corrupt", (0,))]


@pytest.mark.parametrize("after", [1, 2, 5])
async def test_a_batch_is_undelivered_if_the_client_disconnects(after):
    shelf = Shelf(*[large(i) for i in range(3)])
    got = await Client(hangs_up_after=after).get(shelf)
    assert got.told == [] and not got.whole and len(got.sent) <= after + 1


async def test_a_batch_is_undelivered_if_the_client_disconnects_after_the_last_group():
    shelf = Shelf(group())
    assert (await Client(hangs_up_after=2).get(shelf)).told == []


async def test_a_client_that_stops_reading_is_disconnected():
    got = await Client(stops_after=2).get(Shelf(group(), group()), send_timeout_s=0.01)
    assert got.aborted and got.told == []


async def test_a_send_error_for_a_lost_client_ends_the_reply():
    client = Client()

    async def lost(message):
        raise OSError

    client.send = lost
    assert (await client.get(Shelf(group()))).told == []


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Encoding.JSON),
        ("*/*", Encoding.JSON),
        ("application/X-Atropos-Groups", Encoding.FRAMES),
        ("application/json, application/x-atropos-groups; q=0.9", Encoding.FRAMES),
        ("application/x-atropos-groups;q=0", Encoding.JSON),
    ],
)
def test_frames_are_sent_if_the_accept_header_lists_them(accept, form):
    assert accepted_encoding(accept) is form


# --- over real sockets --------------------------------------------------------------------


class App:
    """Answers every request with a delivery of three large groups."""

    def __init__(self, damaged=(), send_timeout_s=60.0):
        self.shelf = Shelf(*[large(i) for i in range(3)])
        self.shelf.damaged = set(damaged)
        self.told = Client()
        self.send_timeout_s = send_timeout_s

    async def __call__(self, scope, receive, send):
        await DeliveryReply(
            self.shelf,
            self.shelf.delivery(),
            Pool(4),
            accept="",
            on_end=self.told.end,
            on_corrupt=lambda error: self.told.note("corrupt"),
            send_timeout_s=self.send_timeout_s,
        )(scope, receive, send)


async def test_a_client_rejects_a_truncated_batch(caplog):
    for app in (App(), App(damaged=[2])):
        async with serving(app) as (_, port), httpx.AsyncClient() as client:
            if app.shelf.damaged:
                with pytest.raises(httpx.RemoteProtocolError):
                    await client.get(f"http://127.0.0.1:{port}/")
            else:
                reply = await client.get(f"http://127.0.0.1:{port}/")
                assert len(reply.json()["batch"]) == 3
            await asyncio.wait_for(app.told.finished.wait(), 600)
        assert app.told.told == [("corrupt",) if app.shelf.damaged else ("sent",)]
    assert not any(record.exc_info for record in caplog.records)


async def test_a_connection_whose_client_does_not_read_is_closed():
    app = App(send_timeout_s=0.05)
    async with serving(app) as (server, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.wait_for(app.told.finished.wait(), 600)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not server.server_state.connections and app.told.told == []
        writer.close()

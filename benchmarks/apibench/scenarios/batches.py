"""How long a trainer waits for a batch, and how many tokens pass through in the long run."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from apibench import servers
from apibench.calls import Client, Reply, send_all
from apibench.figures import Figure, Section, Target, times
from apibench.payloads import Encoding, compressed_arrays, group, pool
from apibench.sizes import BIG, Plan

_METHOD = (
    "Seconds from before the request until its last byte is here, decoding not included, read "
    "into memory made beforehand. Ours reads the groups from SQLite and checks their digests. "
    "Naive answers JSON, also in the binary rows; 'gzip' is what clients get that accept it, "
    "as the usual HTTP clients do: ours then sends plain bytes. Machine: a bare uvicorn "
    "application that sends as many bytes as ours did."
)


@dataclass
class _Way:
    """A way of getting a batch from our server, and the figures it is compared with."""

    what: str
    posted: Encoding
    frames: bool
    gzip: bool = False
    target: Target | None = None
    ours: list[float] = field(default_factory=list)
    naive: list[float] = field(default_factory=list)
    limit: list[float] = field(default_factory=list)
    size: int = 0

    def figure(self, groups: int) -> Figure:
        shape = f"{groups * BIG.rows} x {BIG.length:,}"
        return Figure(
            what=f"batch of {shape}, {self.what}, {self.size / 1e6:.1f} MB",
            unit="s",
            ours=tuple(self.ours),
            naive=tuple(self.naive),
            limit=tuple(self.limit),
            target=self.target,
        )


def run(plan: Plan) -> Section:
    ways = [
        _Way("JSON", Encoding.JSON, frames=False, target=times(100)),
        _Way("JSON, gzip accepted", Encoding.JSON, frames=False, gzip=True),
        _Way("binary", Encoding.BINARY, frames=True, target=times(300)),
        _Way("binary, of groups posted as JSON", Encoding.JSON, frames=True),
        _Way("JSON, of groups posted in binary", Encoding.BINARY, frames=False),
    ]
    naive: dict[bool, list[float]] = {False: [], True: []}
    room = bytearray(plan.batch_groups * BIG.tokens * 40)
    room[:] = bytes(len(room))  # paged in
    for repeat in range(plan.repeats):
        for way in ways:
            reply = _ours(plan, way, room)
            way.ours.append(reply.seconds)
            way.size = len(reply.body)
            way.limit.append(_limit(plan, way.size, room))
        for gzip, repeats in ((False, plan.naive_batch_repeats), (True, 1)):
            if repeat < repeats:
                naive[gzip].append(_naive(plan, gzip, room))
    for way in ways:
        way.naive = naive[way.gzip]
    figures = [way.figure(plan.batch_groups) for way in ways]
    figures += _decoding(plan, ways)
    return Section("Getting a batch, end to end", _METHOD, tuple(figures))


def _ours(plan: Plan, way: _Way, room: bytearray) -> Reply:
    """The second batch: the first pays for imports and for the store's first reads."""
    with servers.Server(servers.ours(source=plan.source), plan.scratch) as server:
        _fill(server, plan.batch_groups, 2 * plan.batch_groups, way.posted)
        client = server.client()
        _take(client, way, "first", server.generation, room)
        return _take(client, way, "second", server.generation, room)


def _naive(plan: Plan, gzip: bool, room: bytearray) -> float:
    with servers.Server(servers.NAIVE, plan.scratch) as server:
        _fill(server, plan.batch_groups, plan.batch_groups, Encoding.JSON)
        way = _Way("JSON", Encoding.JSON, frames=False, gzip=gzip)
        return _take(server.client(), way, "", 0, room).seconds


def _limit(plan: Plan, size: int, room: bytearray) -> float:
    with servers.Server(servers.LIMIT, plan.scratch) as server:
        client = server.client()
        for _ in range(2):  # the first call makes the bytes
            reply = client.call("GET", f"/?{size}", room=room)
        return reply.seconds


def _fill(server: servers.Server, batch_groups: int, groups: int, encoding: Encoding) -> None:
    server.begin(batch_groups * BIG.rows, [servers.env(BIG.rows)])
    send_all(server.port, "/scored_data", pool(4, BIG, encoding), groups, 2)


def _take(client: Client, way: _Way, claim_id: str, generation: int, room: bytearray) -> Reply:
    if way.frames:
        return client.claim(room, generation=generation, claim_id=claim_id)
    headers = {"accept-encoding": "gzip" if way.gzip else "identity"}
    return client.call("GET", "/batch", headers=headers, room=room).ok()


def _decoding(plan: Plan, ways: list[_Way]) -> list[Figure]:
    """Decoding by the trainer after the last byte; the same work for both JSON servers."""
    import msgspec

    from atroposlib.wire.binary import unpack_columns

    made = [group(BIG, 0, 1000 + i % 4) for i in range(plan.batch_groups)]
    text = json.dumps({"batch": made}).encode()
    frames = [compressed_arrays(group) for group in made]

    def seconds(work: Callable[[], object]) -> tuple[float, ...]:
        taken = []
        for _ in range(3):
            began = time.perf_counter()
            work()
            taken.append(time.perf_counter() - began)
        return tuple(taken)

    loads = seconds(lambda: json.loads(text))
    return [
        Figure("decoding it: json.loads", "s", ours=loads, naive=loads),
        Figure("decoding it: msgspec", "s", ours=seconds(lambda: msgspec.json.decode(text))),
        Figure(
            "decoding it: safetensors+zstd to arrays",
            "s",
            ours=seconds(lambda: [unpack_columns(frame) for frame in frames]),
            naive=loads,
        ),
    ]

"""Thousands of environments that post without pause: does the trainer still get its batches?"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from apibench import payloads, servers
from apibench.calls import Client, Refused
from apibench.figures import Better, Figure, Section, Target, at_most
from apibench.payloads import Encoding, Shape
from apibench.processes import usage
from apibench.servers import HERE, Server
from apibench.sizes import Plan
from atroposlib.utils.metrics import percentile

GROUP = Shape(8, 1024)
BATCH = 512  # sequences
REPLICAS = "2 replicas, PostgreSQL"
_NONE_S = 0.02  # between two claims, if there is no batch
_TYPES = {Encoding.JSON: payloads.JSON_TYPE, Encoding.BINARY: payloads.FRAMES_TYPE}
_LEAST_ROOM = 256  # files of the process of posters, in addition to connections
_ROOM = ("--max-connections", "8192")

_METHOD = (
    f"So many environments, each registered and with a connection of its own, all in one process, "
    f"post one group of {GROUP} tokens each and the next as soon as the answer is there; only a "
    "429 or 503 with Retry-After is waited for. Meanwhile a trainer takes batches of "
    f"{BATCH} sequences without pause, in the format they were posted in, by claim and ack (the naive "
    "server: GET /batch). Formed: "
    "the batches that the accepted groups make up. CPU and memory are those of the servers "
    "and, where there is one, of the database, per token that came in and went out; the posters "
    "share the machine. Heard: the environments of which a group was accepted."
)


@dataclass
class Posted:
    """Results of the posters."""

    accepted: int = 0
    refused: int = 0
    failed: int = 0
    seconds: list[float] = field(default_factory=list)
    heard: set[int] = field(default_factory=set)  # posters with an accepted group


@dataclass(frozen=True)
class Posters:
    """Task of the process of posters."""

    ports: Sequence[int]  # replicas, used in turn
    path: str
    ids: Sequence[int]  # environments
    encoding: Encoding
    seconds: float


@dataclass(frozen=True)
class Bench:
    """The servers of a measurement."""

    replicas: Sequence[Server]
    database: int | None = None  # process id

    @property
    def first(self) -> Server:
        return self.replicas[0]

    def used(self) -> tuple[float, float, float]:
        """CPU seconds of the servers and of the database, and MB of the servers."""
        each = [replica.usage() for replica in self.replicas]
        behind = usage(self.database).cpu_s if self.database else 0.0
        return sum(u.cpu_s for u in each), behind, sum(u.rss_bytes for u in each) / 1e6


def run(plan: Plan) -> Section:
    figures: list[Figure] = []
    for store in plan.scale_stores:
        for encoding in (Encoding.JSON, Encoding.BINARY):
            for posters in plan.posters:
                with _servers(plan, store) as bench:
                    ours = _measure(plan, bench, posters, encoding)
                naive: dict[str, float] = {}
                if store == "sqlite" and encoding is Encoding.JSON:
                    with Server(servers.NAIVE, plan.scratch) as server:
                        naive = _measure(plan, Bench([server]), posters, encoding)
                what = f"{posters:,} envs, {store}, {encoding.value}"
                figures += _figures(what, ours, naive)
    return Section("Posts without pause", _METHOD, tuple(figures))


_SHOWN: list[tuple[str, str, Better, Target | None]] = [
    ("claim and ack, 99 %", "s", Better.LESS, at_most(1)),
    ("batches of those formed", "%", Better.MORE, Target(at_least=80, on_value=True)),
    ("groups accepted", "1/s", Better.MORE, None),
    ("heard", "%", Better.MORE, None),
    ("a post, median", "s", Better.LESS, None),
    ("failed requests", "", Better.LESS, None),
    ("CPU of the servers", "s/Mtok", Better.LESS, None),
    ("CPU of the database", "s/Mtok", Better.LESS, None),
    ("memory of the servers", "MB", Better.LESS, None),
]


def _figures(name: str, ours: dict[str, float], naive: dict[str, float]) -> list[Figure]:
    return [
        Figure(
            f"{name}: {what}",
            unit,
            ours=(ours[what],),
            naive=(naive[what],) if what in naive else (),
            better=better,
            target=target,
        )
        for what, unit, better, target in _SHOWN
        if what in ours
    ]


@contextmanager
def _servers(plan: Plan, store: str) -> Iterator[Bench]:
    with ExitStack() as stack:

        def start_replicas(store: str) -> Server:
            ours = servers.ours(store, plan.source)
            kind = servers.Kind(ours.name, (*ours.arguments, *_ROOM), ours.source)
            return stack.enter_context(Server(kind, plan.scratch))

        if store != REPLICAS:
            yield Bench([start_replicas(store)])
            return
        sys.path.append(str(HERE.parent))
        from tests.postgres_server import running_server

        database = stack.enter_context(running_server())
        url = database.fresh_url()
        yield Bench([start_replicas(url), start_replicas(url)], database.pid)


def _measure(plan: Plan, bench: Bench, posters: int, encoding: Encoding) -> dict[str, float]:
    ids = bench.first.begin(BATCH, [servers.env(GROUP.rows)] * posters)
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    path = "/groups" if bench.first.generation else "/scored_data_list"
    ports = [replica.port for replica in bench.replicas]
    work = Posters(ports, path, ids, encoding, plan.post_seconds)
    job = spawn.Process(target=_post_all, args=(work, theirs))
    job.start()
    theirs.close()  # so that recv fails if the process ends
    ours.recv()  # all are connected
    before = bench.used()
    batches, waits = _train(bench.first, _TYPES[encoding], plan.post_seconds)
    after = bench.used()
    posted: Posted = ours.recv()
    job.join()
    formed = posted.accepted * GROUP.rows // BATCH
    mtok = posted.accepted * GROUP.tokens / 1e6
    rates = {
        "claim and ack, 99 %": percentile(waits, 0.99),
        "batches of those formed": 100 * batches / formed if formed else 0.0,
        "groups accepted": posted.accepted / plan.post_seconds,
        "heard": 100 * len(posted.heard) / posters,
        "failed requests": posted.failed,
        "memory of the servers": after[2],
    }
    if posted.seconds:
        rates["a post, median"] = percentile(posted.seconds, 0.5)
    if mtok:
        rates["CPU of the servers"] = (after[0] - before[0]) / mtok
    if mtok and bench.database:
        rates["CPU of the database"] = (after[1] - before[1]) / mtok
    return rates


def _train(server: Server, accept: str, seconds: float) -> tuple[int, list[float]]:
    """Batches taken, and the seconds of each claim, with its ack if it got a batch."""
    client, room = Client(server.port), bytearray(2**26)
    batches, waits = 0, []
    end = time.perf_counter() + seconds
    try:
        while (began := time.perf_counter()) < end:
            if got := _take(server, client, room, accept):
                batches += 1
            waits.append(time.perf_counter() - began)
            if not got:
                time.sleep(_NONE_S)
    except (OSError, Refused):
        waits.append(float("inf"))  # no answer within minutes
    finally:
        client.close()
    return batches, waits


def _take(server: Server, client: Client, room: bytearray, accept: str) -> bool:
    if not server.generation:
        return client.get("/batch")["batch"] is not None
    reply = client.claim(room, accept, generation=server.generation)
    number = reply.headers.get("x-atropos-batch")
    if number is None:
        return False
    epoch = int(reply.headers["x-atropos-epoch"])
    client.post(f"/batches/{number}/ack", {"generation": server.generation, "epoch": epoch})
    return True


# --- the posters, in a separate process --------------------------------------------------


def _post_all(work: Posters, pipe: Connection) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < (least := len(work.ids) + _LEAST_ROOM):
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, hard))
    posted = Posted()
    asyncio.run(_posting(work, pipe, posted))
    pipe.send(posted)


def _bodies(ids: Sequence[int], encoding: Encoding) -> Iterator[tuple[bytes, ...]]:
    """The body of each environment in parts; JSON shares all of it but the id."""
    made = payloads.group(GROUP)
    shared = json.dumps([made]).encode().removesuffix(b"}]")
    for env in ids:
        if encoding is Encoding.BINARY:
            yield (payloads.frame_groups(made | {"env_id": env}),)
        else:
            yield shared, b', "env_id": %d}]' % env


async def _posting(work: Posters, pipe: Connection, posted: Posted) -> None:
    start, tasks = asyncio.Event(), []
    for i, (env, parts) in enumerate(zip(work.ids, _bodies(work.ids, work.encoding))):
        lines = [f"POST {work.path} HTTP/1.1", "host: 127.0.0.1"]
        lines += [f"content-type: {_TYPES[work.encoding]}"]
        lines += [f"content-length: {sum(map(len, parts))}", "", ""]
        request = ("\r\n".join(lines).encode(), *parts)
        poster = _poster(env, work.ports[i % len(work.ports)], request, start, posted)
        tasks.append(asyncio.create_task(poster))
    await asyncio.sleep(0.5 + len(work.ids) / 2000)  # posters connect; failures are repeated
    start.set()
    pipe.send(None)
    await asyncio.wait(tasks, timeout=work.seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _poster(
    who: int, port: int, request: Sequence[bytes], start: asyncio.Event, posted: Posted
) -> None:
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            posted.failed += 1
            await asyncio.sleep(0.5)
            continue
        try:
            await start.wait()
            while True:
                began = time.perf_counter()
                writer.writelines(request)
                await writer.drain()
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(_header(head, b"content-length") or 0))
                posted.seconds.append(time.perf_counter() - began)
                status = int(head.split(b" ", 2)[1])
                posted.accepted += status == 200
                posted.refused += status != 200
                if status == 200:
                    posted.heard.add(who)
                else:
                    await asyncio.sleep(float(_header(head, b"retry-after") or 0))
                if _header(head, b"connection") == b"close":
                    break
        except (OSError, asyncio.IncompleteReadError):
            posted.failed += 1
        finally:
            writer.close()


def _header(head: bytes, name: bytes) -> bytes:
    return head.partition(b"\r\n%b:" % name)[2].partition(b"\r\n")[0].strip()

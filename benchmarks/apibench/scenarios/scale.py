"""Thousands of environments that post without pause: does the trainer still get its batches?"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import time
from dataclasses import dataclass, field

from apibench import payloads, servers
from apibench.calls import Client, Refused
from apibench.figures import Better, Figure, Section, Target, at_most
from apibench.payloads import Shape
from apibench.servers import Server
from apibench.sizes import Plan

GROUP = Shape(8, 64)
BATCH = 1024  # sequences
ENVS = 64  # registered; the posters send in their names
_NONE_S = 0.02  # between two claims, if there is no batch
_LEAST_ROOM = 256  # files of the process of posters beside its connections

_METHOD = (
    f"So many connections, all in one process, post one group of {GROUP} tokens each as JSON and "
    "post the next as soon as the answer is there; only a 429 or 503 with Retry-After is waited "
    f"for. Meanwhile a trainer takes batches of {BATCH} sequences without pause, by claim and ack "
    "(the naive server: GET /batch). Formed: the batches that the accepted groups make up."
)


@dataclass
class Posted:
    """What the posters saw."""

    accepted: int = 0
    refused: int = 0
    failed: int = 0
    seconds: list[float] = field(default_factory=list)


def run(plan: Plan) -> Section:
    figures: list[Figure] = []
    for posters in plan.posters:
        ours = _measure(plan, _many(servers.ours(source=plan.source)), posters)
        naive = _measure(plan, servers.NAIVE, posters)
        for what, unit, better, target in _SHOWN:
            of = Figure(
                f"{posters} posters: {what}",
                unit,
                ours=(ours[what],),
                naive=(naive[what],),
                better=better,
                target=target,
            )
            figures.append(of)
    return Section("Posts without pause", _METHOD, tuple(figures))


_SHOWN: list[tuple[str, str, Better, Target | None]] = [
    ("claim and ack, 99 %", "s", Better.LESS, at_most(1)),
    ("batches of those formed", "%", Better.MORE, Target(at_least=80, on_value=True)),
    ("batches", "", Better.MORE, None),
    ("groups accepted", "1/s", Better.MORE, None),
    ("a post, median", "s", Better.LESS, None),
    ("failed requests", "", Better.LESS, None),
]


def _many(kind: servers.Kind) -> servers.Kind:
    room = ("--max-connections", "8192")
    return servers.Kind(kind.name, (*kind.arguments, *room), kind.source)


def _measure(plan: Plan, kind: servers.Kind, posters: int) -> dict[str, float]:
    with Server(kind, plan.scratch) as server:
        ids = server.begin(BATCH, [servers.env(GROUP.rows)] * min(posters, ENVS))
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        path = "/scored_data_list" if kind is servers.NAIVE else "/groups"
        job = spawn.Process(
            target=_post_all, args=(server.port, path, posters, ids, plan.post_seconds, theirs)
        )
        job.start()
        ours.recv()  # all are connected
        batches, waits = _train(server, plan.post_seconds)
        posted: Posted = ours.recv()
        job.join()
    formed = posted.accepted * GROUP.rows // BATCH
    return {
        "claim and ack, 99 %": _quantile(waits, 0.99),
        "batches of those formed": 100 * batches / formed if formed else 0.0,
        "batches": batches,
        "groups accepted": posted.accepted / plan.post_seconds,
        "a post, median": _quantile(posted.seconds, 0.5),
        "failed requests": posted.failed,
    }


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))] if values else float("inf")


def _train(server: Server, seconds: float) -> tuple[int, list[float]]:
    """Batches taken, and the seconds of each claim, with its ack if it got a batch."""
    client, room = Client(server.port), bytearray(2**26)
    batches, waits = 0, []
    end = time.perf_counter() + seconds
    try:
        while (began := time.perf_counter()) < end:
            if got := _take(server, client, room):
                batches += 1
            waits.append(time.perf_counter() - began)
            if not got:
                time.sleep(_NONE_S)
    except (OSError, Refused):
        waits.append(float("inf"))  # no answer within minutes
    finally:
        client.close()
    return batches, waits


def _take(server: Server, client: Client, room: bytearray) -> bool:
    if not server.generation:
        return client.get("/batch")["batch"] is not None
    reply = client.claim(room, generation=server.generation)
    number = reply.headers.get("x-atropos-batch")
    if number is None:
        return False
    epoch = int(reply.headers["x-atropos-epoch"])
    client.post(f"/batches/{number}/ack", {"generation": server.generation, "epoch": epoch})
    return True


# --- the posters, in a process of their own ----------------------------------------------


def _post_all(
    port: int, path: str, posters: int, ids: list[int], seconds: float, pipe: object
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < posters + _LEAST_ROOM:
        resource.setrlimit(resource.RLIMIT_NOFILE, (posters + _LEAST_ROOM, hard))
    posted = Posted()
    asyncio.run(_posting(port, path, posters, ids, seconds, pipe, posted))
    pipe.send(posted)  # type: ignore[attr-defined]


async def _posting(
    port: int,
    path: str,
    posters: int,
    ids: list[int],
    seconds: float,
    pipe: object,
    posted: Posted,
) -> None:
    bodies = [
        payloads.body([payloads.group(GROUP, env, env)], payloads.Encoding.JSON) for env in ids
    ]
    requests = [
        b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (path.encode(), len(one.data), one.data)
        for one in bodies
    ]
    start = asyncio.Event()
    tasks = [
        asyncio.create_task(_poster(port, requests[i % len(requests)], start, posted))
        for i in range(posters)
    ]
    await asyncio.sleep(0.5 + posters / 2000)  # connect; whoever cannot, goes on trying
    start.set()
    pipe.send(None)  # type: ignore[attr-defined]
    await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _poster(port: int, request: bytes, start: asyncio.Event, posted: Posted) -> None:
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
                writer.write(request)
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(_header(head, b"content-length") or 0))
                posted.seconds.append(time.perf_counter() - began)
                status = int(head.split(b" ", 2)[1])
                posted.accepted += status == 200
                posted.refused += status != 200
                if status != 200:
                    await asyncio.sleep(float(_header(head, b"retry-after") or 0))
                if _header(head, b"connection") == b"close":
                    break
        except (OSError, asyncio.IncompleteReadError):
            posted.failed += 1
        finally:
            writer.close()


def _header(head: bytes, name: bytes) -> bytes:
    return head.partition(b"\r\n%b:" % name)[2].partition(b"\r\n")[0].strip()

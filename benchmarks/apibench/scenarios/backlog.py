"""A queue of gigabytes: its cost on disk and in memory, of a restart, of claims."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median

from apibench import servers
from apibench.calls import send_all
from apibench.figures import Better, Figure, Section, at_most
from apibench.payloads import Encoding, pool
from apibench.sizes import BIG, Plan

_POSTERS = 4
_CLAIMS = 5
_METHOD = (
    f"JSON posts of {BIG} tokens by {_POSTERS} clients until so much is queued, none of it "
    "claimed; then claims of one group, kill -9, a start on the same data, and claims again. "
    "Written is what the kernel counts for the server, over the bytes of the posts."
)


def run(plan: Plan) -> Section:
    bodies = pool(8, BIG, Encoding.JSON)
    size = sum(len(body.data) for body in bodies) / len(bodies)
    count = max(2 * _CLAIMS + 2, round(plan.backlog_gb * 1e9 / size))
    kind = servers.ours(source=plan.source)
    kind = replace(kind, arguments=(*kind.arguments, "--max-store-gb", "16"))
    with servers.Server(kind, plan.scratch) as server:
        server.begin(BIG.rows, [servers.env(BIG.rows)])
        empty, began = server.usage(), time.perf_counter()
        send_all(server.port, "/scored_data", bodies, count, _POSTERS)
        posted_s, full = time.perf_counter() - began, server.usage()
        before = _claims_ms(server)
        ready_s = server.restart()
        again = server.client().post("/register", servers.TRAINER | {"batch_size": BIG.rows})
        server.generation = again["generation"]
        after = _claims_ms(server)
    posted = count * size
    queued = f"{posted / 1e9:.2g} GB queued"
    written = (full.written_bytes - empty.written_bytes) / posted
    return Section(
        "A long queue",
        _METHOD,
        (
            Figure(
                f"{queued}: written per posted byte", "times", (written,), target=at_most(1.1)
            ),
            Figure(f"{queued}: posts", "MB/s", (posted / 1e6 / posted_s,), better=Better.MORE),
            Figure(f"{queued}: resident memory", "MB", (full.rss_bytes / 1e6,)),
            Figure(f"{queued}: claim", "ms", (before,)),
            Figure(f"{queued}: ready after kill -9", "s", (ready_s,), target=at_most(5.0)),
            Figure(f"{queued}: claim after kill -9", "ms", (after,)),
        ),
    )


def _claims_ms(server: servers.Server) -> float:
    """Median of claims, each acked before the next."""
    client, room, took = server.client(), bytearray(BIG.tokens * 40), []
    for _ in range(_CLAIMS):
        reply = client.claim(room, generation=server.generation, wait_s=10.0)
        took.append(reply.seconds)
        epoch = {
            "generation": server.generation,
            "epoch": int(reply.headers["x-atropos-epoch"]),
        }
        client.post(f"/batches/{reply.headers['x-atropos-batch']}/ack", epoch)
    return 1e3 * median(took)

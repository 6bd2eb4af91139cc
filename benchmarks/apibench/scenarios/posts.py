"""CPU time of the server per posted group."""

from __future__ import annotations

from collections import defaultdict

from apibench import servers
from apibench.calls import send_all
from apibench.figures import Figure, Section, times
from apibench.payloads import Body, Encoding, Shape, pool
from apibench.processes import warm_page_cache
from apibench.sizes import BIG, Plan

CLIENTS = 4
_METHOD = (
    "CPU of the server process (user and system, all threads, as the kernel counts) per group, "
    f"{CLIENTS} clients, after one post that is not counted. Ours writes to SQLite with fsync. "
    "The naive server is posted JSON in the binary row too, as it knows nothing else. Machine: "
    "a bare uvicorn application that reads the same bytes and forgets them."
)
_TARGETS = {(BIG, Encoding.JSON): times(4), (BIG, Encoding.BINARY): times(20)}


def run(plan: Plan) -> Section:
    figures = [figure for shape in plan.shapes for figure in _figures(plan, shape)]
    return Section("Posting groups", _METHOD, tuple(figures))


def _figures(plan: Plan, shape: Shape) -> list[Figure]:
    bodies = {encoding: pool(4, shape, encoding) for encoding in Encoding}
    ours: dict[Encoding, list[float]] = defaultdict(list)
    naive: dict[Encoding, list[float]] = defaultdict(list)
    limit: dict[Encoding, list[float]] = defaultdict(list)
    for _ in range(plan.repeats):
        for encoding, sent in bodies.items():
            kind = servers.ours(source=plan.source)
            ours[encoding].append(cost_ms(plan, kind, shape, sent))
            if encoding is not Encoding.BINARY:
                naive[encoding].append(cost_ms(plan, servers.NAIVE, shape, sent))
            limit[encoding].append(cost_ms(plan, servers.LIMIT, shape, sent))
    naive[Encoding.BINARY] = naive[Encoding.JSON]
    return [
        Figure(
            what=f"POST {shape} tokens, {encoding.value}, {_mb(sent):.2f} MB",
            unit="CPU ms/group",
            ours=tuple(ours[encoding]),
            naive=tuple(naive[encoding]),
            limit=tuple(limit[encoding]),
            target=_TARGETS.get((shape, encoding)),
        )
        for encoding, sent in bodies.items()
    ]


def _mb(bodies: list[Body]) -> float:
    return sum(len(body.data) for body in bodies) / len(bodies) / 1e6


def cost_ms(plan: Plan, kind: servers.Kind, shape: Shape, bodies: list[Body]) -> float:
    """CPU of a fresh server per posted group, after a post that is not counted."""
    count = max(8, plan.post_tokens // shape.tokens)
    with servers.Server(kind, plan.scratch) as server:
        if kind is not servers.LIMIT:
            server.begin(10**6, [servers.env(shape.rows)])
        send_all(server.port, "/scored_data", bodies, 1, 1)
        warm_page_cache(plan.scratch)
        before = server.usage().cpu_s
        send_all(server.port, "/scored_data", bodies, count, CLIENTS)
        return 1e3 * (server.usage().cpu_s - before) / count

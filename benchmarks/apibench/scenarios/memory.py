"""Memory per queued token."""

from __future__ import annotations

from apibench import servers
from apibench.calls import send_all
from apibench.figures import Figure, Section, at_most
from apibench.payloads import Encoding, pool
from apibench.sizes import BIG, Plan

_METHOD = (
    "Growth of the resident memory of the server per queued token while the second half of the "
    "queue is posted: what is allocated once, as buffers of threads are, does not count. A "
    "token is an id, a mask and a logprob: 12 bytes as bare arrays, about 31 in JSON. Naive is "
    "posted JSON."
)
_FLAT = 1.0  # bytes per token: memory does not follow the queue


def run(plan: Plan) -> Section:
    figures = []
    few = plan.memory_groups // 4  # every token costs the same there, and it is slow
    naive = _bytes_per_token(plan, servers.NAIVE, Encoding.JSON, few)
    for store, encoding, bound in (
        ("memory", Encoding.BINARY, 14.0),
        ("memory", Encoding.JSON, 14.0),
        ("sqlite", Encoding.BINARY, _FLAT),
        ("sqlite", Encoding.JSON, _FLAT),
    ):
        kind = servers.ours(store, plan.source)
        per_token = _bytes_per_token(plan, kind, encoding, plan.memory_groups)
        figures.append(
            Figure(
                what=f"--store {store}, posted as {encoding.value}",
                unit="B/token",
                ours=(per_token,),
                naive=(naive,),
                target=at_most(bound),
            )
        )
    return Section("Memory of the queue", _METHOD, tuple(figures))


def _bytes_per_token(plan: Plan, kind: servers.Kind, encoding: Encoding, groups: int) -> float:
    half = groups // 2
    bodies = pool(8, BIG, encoding)
    with servers.Server(kind, plan.scratch) as server:
        server.begin(10**6, [servers.env(BIG.rows)])
        send_all(server.port, "/scored_data", bodies, half, 2)
        before = server.usage().rss_bytes
        send_all(server.port, "/scored_data", bodies, half, 2)
        return (server.usage().rss_bytes - before) / (half * BIG.tokens)

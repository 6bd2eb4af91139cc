"""Latency of other requests while a large batch is served."""

from __future__ import annotations

import time

from apibench import servers
from apibench.calls import Prober, send_all
from apibench.figures import Figure, Section, at_most
from apibench.payloads import Encoding, pool
from apibench.sizes import BIG, Plan

_SETTLE_S = 0.3
_METHOD = (
    "A process of its own asks GET /status every 2 ms while another client takes one batch "
    "by GET /batch. The figure is the slowest of these calls."
)


def run(plan: Plan) -> Section:
    ours, naive, idle = [], [], []
    for _ in range(plan.repeats):
        kind = servers.ours(source=plan.source)
        quiet, busy = _worst_ms(plan, kind)
        ours.append(busy)
        idle.append(quiet)
    if plan.naive_blocking:
        naive.append(_worst_ms(plan, servers.NAIVE)[1])
    shape = f"{plan.blocking_groups * BIG.rows} x {BIG.length:,}"
    figures = (
        Figure(
            what=f"slowest GET /status while a batch of {shape} is served",
            unit="ms",
            ours=tuple(ours),
            naive=tuple(naive),
            target=at_most(100),
        ),
        Figure(what="slowest GET /status while nothing is", unit="ms", ours=tuple(idle)),
    )
    return Section("Who waits while a batch is served", _METHOD, figures)


def _worst_ms(plan: Plan, kind: servers.Kind) -> tuple[float, float]:
    groups = plan.blocking_groups
    with servers.Server(kind, plan.scratch) as server:
        server.begin(groups * BIG.rows, [servers.env(BIG.rows)])
        send_all(server.port, "/scored_data", pool(4, BIG, Encoding.JSON), groups, 2)
        room = bytearray(groups * BIG.tokens * 40)
        room[:] = bytes(len(room))
        client = server.client()
        with Prober(server.port) as prober:
            quiet = time.perf_counter()
            time.sleep(_SETTLE_S)
            begin = time.perf_counter()
            client.call("GET", "/batch", room=room).ok()
            end = time.perf_counter()
            time.sleep(_SETTLE_S)
        return 1e3 * max(prober.during(quiet, begin)), 1e3 * max(prober.during(begin, end))

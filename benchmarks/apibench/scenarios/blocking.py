"""Latency of small requests while a large batch is served, or large posts are read."""

from __future__ import annotations

import time

from apibench import servers
from apibench.calls import Prober, send_all
from apibench.figures import Figure, Section, at_most
from apibench.payloads import Encoding, body, group, pool
from apibench.sizes import BIG, Plan
from atroposlib.utils.metrics import percentile

_SETTLE_S = 0.3
_LARGE_POSTS = 6  # posts sent at once
_METHOD = (
    "A process of its own asks GET /status every 2 ms while another client takes one batch "
    "by GET /batch. The figure is the slowest of these calls. The same with GET /health while "
    f"{_LARGE_POSTS} large JSON posts arrive at once; memory is what the server grew by at the end."
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
        *_large_posts(plan),
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


def _large_posts(plan: Plan) -> list[Figure]:
    with servers.Server(servers.ours(source=plan.source), plan.scratch) as server:
        [env_id] = server.begin(BIG.rows, [servers.env(BIG.rows)])
        groups = [group(BIG, env_id, seed) for seed in range(plan.large_post_groups)]
        large = [body(groups, Encoding.JSON)]
        send_all(server.port, "/scored_data_list", large, 1, 1)  # what is allocated once
        before = server.usage().rss_bytes
        with Prober(server.port, "/health") as prober:
            begin = time.perf_counter()
            send_all(server.port, "/scored_data_list", large, _LARGE_POSTS, _LARGE_POSTS)
            end = time.perf_counter()
        grown = (server.usage().rss_bytes - before) / 1e6
    took = prober.during(begin, end)
    posts = f"{_LARGE_POSTS} posts of {len(large[0].data) / 1e6:.0f} MB"
    return [
        Figure(
            f"slowest GET /health during {posts}",
            "ms",
            (1e3 * max(took),),
            target=at_most(100),
        ),
        Figure(
            f"99th percentile of GET /health during {posts}",
            "ms",
            (1e3 * percentile(took, 0.99),),
        ),
        Figure(f"memory after {posts}", "MB", (grown,)),
    ]

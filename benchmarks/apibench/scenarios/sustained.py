"""Posts and batches at once, in the long run: tokens per second through the server."""

from __future__ import annotations

import time
from dataclasses import dataclass

from apibench import servers
from apibench.figures import Better, Figure, Section, times
from apibench.flow import POSTERS, Flow
from apibench.payloads import Encoding, pool
from apibench.processes import warm_page_cache
from apibench.sizes import BIG, Plan

GROUPS_PER_BATCH = 16
AHEAD = 3  # batches posted and not yet taken, at most
_METHOD = (
    f"{POSTERS} clients post groups of {BIG} tokens, at most {AHEAD} batches ahead of a "
    f"trainer that takes batches of {GROUPS_PER_BATCH} groups and throws them away. Ours is "
    "durable. The clients share the machine with the server, so the figure is what both "
    "together can do. In the binary rows naive is still sent JSON."
)


@dataclass(frozen=True)
class _Rate:
    tokens_s: float
    cpu_s: float  # CPU of the server per million tokens


def run(plan: Plan) -> Section:
    rates: dict[str, list[_Rate]] = {"JSON": [], "binary": [], "naive": []}
    ours = servers.ours(source=plan.source)
    count, naive_count = plan.sustained_batches, plan.naive_sustained_batches
    for repeat in range(plan.repeats):
        rates["JSON"].append(_measure(plan, ours, Encoding.JSON, False, count))
        rates["binary"].append(_measure(plan, ours, Encoding.BINARY, True, count))
        if repeat < plan.naive_batch_repeats:
            naive = _measure(plan, servers.NAIVE, Encoding.JSON, False, naive_count)
            rates["naive"].append(naive)
    figures = []
    for way, target in (("JSON", times(20)), ("binary", times(70))):
        figures.append(
            Figure(
                what=f"posts and batches, {way}",
                unit="Mtok/s",
                ours=tuple(rate.tokens_s / 1e6 for rate in rates[way]),
                naive=tuple(rate.tokens_s / 1e6 for rate in rates["naive"]),
                better=Better.MORE,
                target=target,
            )
        )
        figures.append(
            Figure(
                what=f"posts and batches, {way}",
                unit="CPU s/Mtok",
                ours=tuple(rate.cpu_s for rate in rates[way]),
                naive=tuple(rate.cpu_s for rate in rates["naive"]),
            )
        )
    return Section("Posts and batches, sustained", _METHOD, tuple(figures))


def _measure(
    plan: Plan, kind: servers.Kind, encoding: Encoding, frames: bool, batches: int
) -> _Rate:
    bodies = pool(4, BIG, encoding)
    with servers.Server(kind, plan.scratch) as server:
        server.begin(GROUPS_PER_BATCH * BIG.rows, [servers.env(BIG.rows)])
        flow = Flow(
            server.port,
            bodies,
            batches,
            server.generation,
            frames,
            groups_per_batch=GROUPS_PER_BATCH,
            groups_ahead=GROUPS_PER_BATCH * AHEAD,
            room_bytes=GROUPS_PER_BATCH * BIG.tokens * 40,
        )
        warm_page_cache(plan.scratch)
        cpu, began = server.usage().cpu_s, time.perf_counter()
        flow.run()
        wall, cpu = time.perf_counter() - began, server.usage().cpu_s - cpu
    tokens = batches * GROUPS_PER_BATCH * BIG.tokens
    return _Rate(tokens / wall, cpu / (tokens / 1e6))

"""Event loops and HTTP parsers of uvicorn compared."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

from apibench import servers
from apibench.figures import Better, Figure, Section
from apibench.payloads import Encoding, pool
from apibench.scenarios.environments import simulate
from apibench.scenarios.posts import cost_ms
from apibench.simulation import Pace
from apibench.sizes import BIG, Plan

_METHOD = (
    "The load of the section above, greedy, and groups of JSON, on the same application under "
    "each pair. Four clients post."
)
_LESS, _MORE = Better.LESS, Better.MORE


def run(plan: Plan) -> Section:
    rates: dict[tuple[str, str, Better], list[float]] = defaultdict(list)
    bodies = pool(4, BIG, Encoding.JSON)
    for _ in range(plan.loop_repeats):
        for loop, http in product(("uvloop", "asyncio"), ("httptools", "h11")):
            kind = servers.ours_on(loop, http, plan.source)
            got = simulate(plan, kind, Pace.GREEDY, plan.loop_seconds)
            for what, unit, better, value in (
                ("requests", "1/s", _MORE, got.requests_s),
                ("CPU per request", "ms", _LESS, got.cpu_per_request_ms),
                ("99 % of requests within", "ms", _LESS, got.p99_s * 1e3),
                ("slowest request", "ms", _LESS, got.slowest_s * 1e3),
                (
                    f"POST {BIG} tokens, JSON",
                    "CPU ms/group",
                    _LESS,
                    cost_ms(plan, kind, BIG, bodies),
                ),
            ):
                rates[f"{kind.name}: {what}", unit, better].append(value)
    figures = [
        Figure(what, unit, tuple(repeats), better=better)
        for (what, unit, better), repeats in rates.items()
    ]
    return Section("Event loop and HTTP parser", _METHOD, tuple(figures))

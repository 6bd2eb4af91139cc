"""Event loops and HTTP parsers of uvicorn compared."""

from __future__ import annotations

from itertools import product

from apibench import servers
from apibench.calls import send_all
from apibench.figures import Better, Figure, Section
from apibench.payloads import Body, Encoding, pool
from apibench.scenarios.environments import simulate
from apibench.simulation import Pace
from apibench.sizes import BIG, Plan

_METHOD = (
    "The load of the section above, greedy, and groups of JSON, on the same application under "
    "each pair. Four clients post."
)


def run(plan: Plan) -> Section:
    pairs = [
        f"{loop} + {http}"
        for loop, http in product(("uvloop", "asyncio"), ("httptools", "h11"))
    ]
    found: dict[str, dict[str, list[float]]] = {
        pair: {"slowest": [], "p99": [], "rate": [], "cpu": [], "post": []} for pair in pairs
    }
    bodies = pool(4, BIG, Encoding.JSON)
    for _ in range(plan.loop_repeats):
        for pair in pairs:
            loop, _, http = pair.split()
            kind = servers.ours_on(loop, http, plan.source)
            got = simulate(plan, kind, Pace.GREEDY, plan.loop_seconds)
            found[pair]["slowest"].append(got.slowest_s * 1e3)
            found[pair]["p99"].append(got.p99_s * 1e3)
            found[pair]["rate"].append(got.requests_s)
            found[pair]["cpu"].append(got.cpu_per_request_ms)
            found[pair]["post"].append(_post_ms(plan, kind, bodies))
    figures = []
    for pair, of in found.items():
        figures += [
            Figure(f"{pair}: requests", "1/s", tuple(of["rate"]), better=Better.MORE),
            Figure(f"{pair}: CPU per request", "ms", tuple(of["cpu"])),
            Figure(f"{pair}: 99 % of requests within", "ms", tuple(of["p99"])),
            Figure(f"{pair}: slowest request", "ms", tuple(of["slowest"])),
            Figure(f"{pair}: POST {BIG} tokens, JSON", "CPU ms/group", tuple(of["post"])),
        ]
    return Section("Event loop and HTTP parser", _METHOD, tuple(figures))


def _post_ms(plan: Plan, kind: servers.Kind, bodies: list[Body]) -> float:
    count = max(8, plan.post_tokens // BIG.tokens)
    with servers.Server(kind, plan.scratch) as server:
        server.begin(10**6, [servers.env(BIG.rows)])
        send_all(server.port, "/scored_data", bodies, 1, 1)
        before = server.usage().cpu_s
        send_all(server.port, "/scored_data", bodies, count, 4)
        return 1e3 * (server.usage().cpu_s - before) / count

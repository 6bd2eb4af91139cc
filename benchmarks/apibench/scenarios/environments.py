"""Many environments and a trainer: lost and duplicated groups, shares of the mix."""

from __future__ import annotations

import uvloop

from apibench import servers
from apibench.figures import Figure, Section, Target, at_most
from apibench.servers import Server
from apibench.simulation import BATCH, POLL_S, SETTLE_S, STEP_S, Pace, Simulation, weight_of
from apibench.sizes import Plan

_METHOD = (
    f"Every environment polls /status-env each {POLL_S} s and posts groups of 4 x 64 tokens; a "
    f"trainer takes batches of {BATCH} sequences by GET /batch and trains {STEP_S} s on each. "
    "Weights are 1, 2, 3, 4 in turn. Each group carries a number in its first token, so what "
    "was lost or came twice is counted and not estimated. Slowest request: of all polls, posts "
    "and batches of all clients, their first connections included. Shares are counted after "
    f"{SETTLE_S:.0f} s. *backlogged*: an environment posts while fewer than two "
    "groups of its own are queued, so all have something to offer and the server decides the "
    "mix: here the shares are judged. *greedy*: it posts while the whole queue holds less "
    "than three batches, whoever is first; what is never posted can be in no batch, so equal "
    "supply gives equal shares whatever the weights. *scaled*: greedy, in proportion to the "
    "`env_weight` that the server tells; with so many environments all are at its floor of "
    "0.01, so it does not differ."
)


def run(plan: Plan) -> Section:
    figures: list[Figure] = []
    for name, seconds in plan.env_seconds.items():
        pace = Pace(name)
        ours = simulate(plan, servers.ours(source=plan.source), pace, seconds)
        judged = pace is Pace.BACKLOGGED
        naive = None
        if judged and plan.naive_env_seconds:
            naive = simulate(plan, servers.NAIVE, pace, plan.naive_env_seconds)
        figures += _figures(plan, pace, seconds, ours, naive, judged)
    return Section("Many environments and a trainer", _METHOD, tuple(figures))


def simulate(plan: Plan, kind: servers.Kind, pace: Pace, seconds: float) -> Simulation:
    """Run it on a fresh server, until the queue is drained."""
    with Server(kind, plan.scratch) as server:
        envs = [servers.env(4, weight_of(i)) for i in range(plan.environments)]
        simulation = Simulation(server.port, server.begin(BATCH, envs), pace)
        before = server.usage().cpu_s
        uvloop.run(simulation.run(seconds))
        simulation.server_cpu_s = server.usage().cpu_s - before
    return simulation


def _figures(
    plan: Plan,
    pace: Pace,
    seconds: float,
    ours: Simulation,
    naive: Simulation | None,
    judged: bool,
) -> list[Figure]:
    name = f"{plan.environments} envs, {seconds:.0f} s, {pace.value}"
    none = at_most(0)

    def figure(what: str, unit: str, of: str, target: Target | None) -> Figure:
        theirs = () if naive is None else (float(getattr(naive, of)),)
        mine = (float(getattr(ours, of)),)
        return Figure(f"{name}: {what}", unit, ours=mine, naive=theirs, target=target)

    return [
        figure("accepted", "groups", "accepted", None),
        figure("lost", "groups", "lost", none),
        figure("came twice", "groups", "doubled", none),
        figure("failed requests", "requests", "failed", none),
        figure(
            "shares off by at most", "points", "share_error", at_most(2) if judged else None
        ),
        figure("slowest request", "s", "slowest_s", at_most(1)),
        figure("99 % of requests within", "s", "p99_s", None),
        figure("requests", "1/s", "requests_s", None),
        figure("CPU of the server per request", "ms", "cpu_per_request_ms", None),
    ]

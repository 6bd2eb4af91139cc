"""Many seeds, and a smaller plan of one that fails.

python -m tests.simulator.campaign --seeds 0:100           a campaign
python -m tests.simulator.campaign --seed 17               one seed, with what happened
python -m tests.simulator.campaign --shrink 17             writes kept/17.json
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import msgspec

from tests.simulator.plan import Kind, Plan, draw, load
from tests.simulator.simulation import Outcome, simulate
from tests.torture.figures import Figures

# Events that only a dimension of the plans makes: none in twenty seeds would be a dead dimension.
LIVE = (
    "claims ahead",
    "minima",
    "parts",
    "deliveries again",
    "duplicates",
    "gave up",
    "restarts",
    "waits",
    *(kind.value for kind in Kind),
)
ENOUGH_SEEDS = 20
KEPT = Path(__file__).parent / "kept"
MOST_RUNS = 120  # of one shrinking
AGAIN = "python -m tests.simulator.campaign --seed {} --hours {:g}"


def run_seed(seed: int, hours: float) -> Outcome:
    outcome = simulate(draw(seed, hours))
    outcome.trace = []
    return outcome


def seed_campaign(seeds: int, first: int = 0, hours: float = 0.2, at_once: int = 2) -> Figures:
    """Raises AssertionError with the command that repeats the first violation."""
    seen, virtual_s, cpu_s, bad = Counter[str](), 0.0, 0.0, []
    with ProcessPoolExecutor(at_once, mp_context=get_context("spawn")) as pool:
        jobs = partial(run_seed, hours=hours)
        for one in pool.map(jobs, range(first, first + seeds)):
            seen += one.seen
            virtual_s, cpu_s = virtual_s + one.virtual_s, cpu_s + one.cpu_s
            if one.failure:
                bad.append(f"{AGAIN.format(one.plan.seed, hours)}: {one.failure[:400]}")
    figures = Figures({"seeds": seeds, "violations": len(bad)})
    figures |= {
        "simulated hours": virtual_s / 3600,
        "hours per CPU-s": virtual_s / 3600 / cpu_s,
    }
    figures |= dict(sorted(seen.items()))
    assert not bad, "\n".join([figures.line("simulator"), *bad])
    dead = [name for name in LIVE if not seen[name]]
    assert seeds < ENOUGH_SEEDS or not dead, f"nothing of {dead} happened in {seeds} seeds"
    return figures


def shrink(plan: Plan) -> Plan:
    """A smaller plan that fails: fewer actors, then fewer faults, then less time."""
    runs = 0
    while runs < MOST_RUNS:
        for smaller in _smaller(plan):
            runs += 1
            if simulate(smaller).failure:
                plan = smaller
                break
            if runs >= MOST_RUNS:
                break
        else:
            break
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    change = msgspec.structs.replace
    if len(plan.envs) > 1:
        for env in plan.envs:
            envs = tuple(one for one in plan.envs if one is not env)
            faults = tuple(one for one in plan.faults if one.who != env.name)
            yield change(plan, envs=envs, faults=faults)
    size = len(plan.faults)
    step = size
    while step >= 1:
        for start in range(0, size, step):
            yield change(plan, faults=plan.faults[:start] + plan.faults[start + step :])
        step //= 2
    last = max((one.at + one.lasts for one in plan.faults), default=0.0)
    for sooner in (last + 1.0, plan.trouble_s / 2, plan.trouble_s * 0.8):
        if sooner < plan.trouble_s - 1.0:
            yield change(plan, trouble_s=sooner)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:20", help="first:last, without the last")
    parser.add_argument("--hours", type=float, default=0.2)
    parser.add_argument("--seed", type=int, help="one seed, with all that happened")
    parser.add_argument("--plan", type=Path, help="a kept plan, likewise")
    parser.add_argument("--shrink", type=int, metavar="SEED")
    options = parser.parse_args()
    if options.shrink is not None:
        small = shrink(draw(options.shrink, options.hours))
        small.save(KEPT / f"{small.seed}.json")
        return _show(small)
    if options.plan or options.seed is not None:
        return _show(load(options.plan) if options.plan else draw(options.seed, options.hours))
    first, last = map(int, options.seeds.split(":"))
    print(seed_campaign(last - first, first, options.hours).line("simulator"))
    return 0


def _show(plan: Plan) -> int:
    one = simulate(plan)
    print(*one.trace, f"{one.digest} {one.virtual_s:.0f} s in {one.cpu_s:.1f}", sep="\n")
    print(dict(one.seen), one.failure or "no violation")
    return 1 if one.failure else 0


if __name__ == "__main__":
    sys.exit(main())

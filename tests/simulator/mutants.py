"""Seeded bugs that the simulator has to find within 50 seeds: the test of the simulator."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

from atroposlib.api.run import claims
from atroposlib.api.store.sql import ack as ack_queries
from atroposlib.api.store.sql import claim as claim_queries
from tests.simulator.plan import draw
from tests.simulator.simulation import simulate
from tests.torture.figures import Figures
from tests.torture.queue.mutants import MUTANTS as OF_THE_QUEUE
from tests.torture.queue.mutation import wrap

SEEDS = 50  # within which each has to be found


def ack_lost() -> None:
    """One in eight is answered and not recorded."""
    count = iter(range(10**9))

    def around(original: Any, ack: Any, connection: Any) -> Any:
        return True if next(count) % 8 == 7 else original(ack, connection)

    wrap(ack_queries.Ack, "__call__", around)


def key_ignored() -> None:
    OF_THE_QUEUE["keys_are_not_unique"][1]()


def lease_never_ends() -> None:
    """Neither after its time nor with the generation of its trainer."""

    def around(original: Any, opened: Any, claim: Any) -> Any:
        return [row for row in opened if row.claim_id == claim.claim_id]

    wrap(claim_queries, "_due", around)


def batch_one_short() -> None:
    def around(original: Any, *args: Any, batch_size: int, **more: Any) -> Any:
        return original(*args, batch_size=batch_size - 1, **more)

    wrap(claims, "choose", around)


def ones_passed_over() -> None:
    """Groups of 1 sequence are chosen only where nothing larger is queued."""

    def around(original: Any, queue: Any, *args: Any, **more: Any) -> Any:
        larger = [group for group in queue if group.n_seq > 1]
        return original(larger or queue, *args, **more)

    wrap(claims, "choose", around)


def fencing_off() -> None:
    OF_THE_QUEUE["a_registration_fences_nobody"][1]()


MUTANTS: dict[str, Callable[[], None]] = {
    one.__name__: one
    for one in (
        ack_lost,
        key_ignored,
        lease_never_ends,
        batch_one_short,
        ones_passed_over,
        fencing_off,
    )
}


def seeds_until_found(name: str, seeds: int) -> int:
    """How many seeds it takes; 0: it is not found. Its process runs nothing else."""
    MUTANTS[name]()
    return next((seed + 1 for seed in range(seeds) if simulate(draw(seed)).failure), 0)


def mutant_campaign(seeds: int = SEEDS, at_once: int = 2) -> Figures:
    """Raises AssertionError if one is not found."""
    context = get_context("spawn")
    with ProcessPoolExecutor(at_once, mp_context=context, max_tasks_per_child=1) as pool:
        found = dict(zip(MUTANTS, pool.map(partial(seeds_until_found, seeds=seeds), MUTANTS)))
    figures = Figures({f"seeds for {name}": seeds for name, seeds in found.items()})
    assert all(found.values()), figures.line("mutants of the simulator")
    return figures

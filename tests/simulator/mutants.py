"""Seeded bugs that the simulator has to find within 20 seeds: the test of the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any

from atroposlib.api.run import claims
from atroposlib.api.store import sqlite
from atroposlib.api.store.sql import ack as ack_queries, claim as claim_queries, sql_store
from tests.simulator.plan import draw
from tests.simulator.simulation import simulate
from tests.torture.disk.lossy_disk import LossySegments
from tests.torture.figures import Figures
from tests.torture.queue.mutants import MUTANTS as OF_THE_QUEUE
from tests.torture.queue.mutation import wrap

SEEDS = 20  # within which each has to be found


def ack_lost() -> None:
    """One in eight is answered and not recorded."""
    count = iter(range(10**9))

    def around(original: Any, ack: Any, connection: Any) -> Any:
        return True if next(count) % 8 == 7 else original(ack, connection)

    wrap(ack_queries.Ack, "__call__", around)


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


def redelivery_in_another_order() -> None:
    def around(original: Any, counters: Any, row: Any, claim: Any) -> Any:
        batch = original(counters, row, claim)
        return replace(batch, members=batch.members[::-1])

    wrap(claim_queries, "_deliver_again", around)


def a_payload_of_a_neighbour() -> None:
    """Every eighth read of several payloads returns two of them in each other's place."""
    count = iter(range(10**9))

    def around(original: Any, store: Any, gids: Any, *args: Any, **more: Any) -> Any:
        swap = len(gids) > 1 and next(count) % 8 == 7
        return original(store, [gids[1], gids[0], *gids[2:]] if swap else gids, *args, **more)

    wrap(sql_store.Store, "read", around)


def payloads_are_never_synced() -> None:
    wrap(LossySegments, "sync", lambda original, segments, no: None)


def rows_are_never_synced() -> None:
    def around(original: Any, path: Any, vfs: Any, synchronous: str, read_only: bool) -> Any:
        return original(path, vfs, "OFF", read_only)

    wrap(sqlite, "open_database", around)


def a_rewind_frees_the_queue() -> None:
    def around(original: Any, rewind: Any, connection: Any) -> Any:
        done = original(rewind, connection)
        connection.execute("UPDATE groups SET state = 'dropped' WHERE state = 'pending'")
        return done

    wrap(ack_queries.Rewind, "__call__", around)


def an_ended_lease_frees_its_groups() -> None:
    """Its batch goes to the next claimer, and its groups into new batches too."""

    def around(original: Any, counters: Any, row: Any, claim: Any) -> Any:
        batch = original(counters, row, claim)
        counters.connection.execute(
            "UPDATE groups SET state = 'pending' WHERE batch_no = ?", (row.no,)
        )
        return batch

    wrap(claim_queries, "_deliver_again", around)


# Of the bugs of the queue those that calls over a network and crashes can show.
OF_QUEUE = (
    # once: keys, acks, leases
    "keys_are_not_unique",
    "a_live_lease_is_given_to_anybody",
    "an_ended_lease_is_never_given_on",
    "ack_ignores_the_epoch",
    "redelivery_begins_with_the_newest",
    "redelivery_keeps_the_epoch",
    # never lost: checkpoints and fences
    "a_registration_fences_nobody",
    "rewind_leaves_one_out",
    # exact batches: sizes, minima, age
    "minima_are_a_wish",
    "staleness_is_one_off",
    "the_queue_is_shown_short",
)
OWN = (
    ack_lost,
    lease_never_ends,
    batch_one_short,
    ones_passed_over,
    redelivery_in_another_order,
    an_ended_lease_frees_its_groups,
    a_payload_of_a_neighbour,
    payloads_are_never_synced,
    rows_are_never_synced,
    a_rewind_frees_the_queue,
)
MUTANTS: dict[str, Callable[[], None]] = {
    **{patch.__name__: patch for patch in OWN},
    **{name: OF_THE_QUEUE[name][1] for name in OF_QUEUE},
}


def seeds_until_found(name: str, seeds: int) -> int:
    """How many seeds it takes; 0: it is not found. Its process runs nothing else."""
    MUTANTS[name]()
    return next((seed + 1 for seed in range(seeds) if simulate(draw(seed)).failure), 0)


def mutant_campaign(
    seeds: int = SEEDS, at_once: int = 2, names: Sequence[str] = tuple(MUTANTS)
) -> Figures:
    """Raises AssertionError if one is not found."""
    context = get_context("spawn")
    with ProcessPoolExecutor(at_once, mp_context=context, max_tasks_per_child=1) as pool:
        found = dict(zip(names, pool.map(partial(seeds_until_found, seeds=seeds), names)))
    figures = Figures({f"seeds for {name}": seeds for name, seeds in found.items()})
    assert all(found.values()), figures.line("mutants of the simulator")
    return figures

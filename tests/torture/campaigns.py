"""All campaigns by name, with their sizes in `make test`, `make campaign` and `make torture`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from atroposlib.api.store import open_store
from tests.postgres_server import running_server
from tests.simulator.campaign import seed_campaign
from tests.simulator.mutants import SEEDS, mutant_campaign
from tests.torture.disk.bit_rot import bit_rot_campaign
from tests.torture.disk.full_disk import full_disk_campaign
from tests.torture.disk.power_cuts import power_cut_campaign
from tests.torture.figures import Figures, fast_folder, in_own_process
from tests.torture.kills.env_faults import Durations, environment_campaign
from tests.torture.kills.killed_run import kill_campaign, replica_campaign
from tests.torture.queue.mutants import MUTANTS
from tests.torture.queue.mutation_job import mutation_campaign
from tests.torture.queue.queue_actions import MAX_BYTES
from tests.torture.queue.queue_machine import (
    PostgresMachine,
    QueueMachine,
    SqliteMachine,
    run_machine,
)
from tests.torture.web.bombs import bomb_campaign
from tests.torture.web.fuzz import fuzz_campaign
from tests.torture.web.schema_fuzz import schema_campaign
from tests.torture.web.slow_readers import slow_reader_campaign
from tests.torture.web.soak import soak_campaign


@dataclass(frozen=True)
class Campaign:
    """``run(size, seed)`` raises AssertionError at a broken promise."""

    run: Callable[[int, int], Figures]
    unit: str
    quick: int  # of `make test`; 0: not part of it
    whole: int  # of `make campaign`; 0: another test does the same
    long: int  # of `make torture`


def model_on_memory(examples: int, _: int) -> Figures:
    return counted(run_machine(QueueMachine, examples))


def model_on_sqlite(examples: int, _: int) -> Figures:
    with fast_folder() as SqliteMachine.place:
        return counted(run_machine(SqliteMachine, examples))


def model_on_postgres(examples: int, _: int) -> Figures:
    with running_server() as server:
        PostgresMachine.server = server
        store = open_store(server.fresh_url(), max_bytes=MAX_BYTES)
        PostgresMachine.shared_store = store
        try:
            return counted(run_machine(PostgresMachine, examples, steps=30))
        finally:
            store.close()


def counted(seen: Counter[str]) -> Figures:
    return Figures({"differences": 0, **seen})


def power_without_fsync(cuts: int, seed: int) -> Figures:
    """The control: if nothing breaks here, the cuts above prove nothing."""
    figures = power_cut_campaign(cuts, "NORMAL", seed)
    assert figures["with a broken promise"] > 0, figures.line("synchronous=NORMAL")
    return figures


def environment_outages(rounds: int, seed: int) -> Figures:
    """CI runs the same with short outages: tests/integration/test_environment_faults.py."""
    return environment_campaign(rounds, Durations())


def trainer_kills(kills: int, seed: int) -> Figures:
    """CI kills once in each phase of a run: tests/trainer/checkpoint/test_recovery_killed.py."""
    from tests.torture.kills.killed_trainers import trainer_campaign  # imports torch

    return trainer_campaign(kills, seed)


def mixed_kills(kills: int, seed: int) -> Figures:
    from tests.torture.kills.killed_parts import mixed_campaign  # imports torch

    return mixed_campaign(kills, seed)


def network_cuts(cut_s: int, seed: int) -> Figures:
    from tests.torture.network.cuts import cut_campaign  # imports torch

    return cut_campaign(cut_s)


def healthy_runs(runs: int, seed: int) -> Figures:
    from tests.torture.kills.healthy_runs import healthy_campaign  # imports torch

    return healthy_campaign(runs, seed)


CAMPAIGNS: dict[str, Campaign] = {
    "model-memory": Campaign(model_on_memory, "examples", 40, 300, 5_000),
    "model-sqlite": Campaign(model_on_sqlite, "examples", 100, 600, 20_000),
    "model-postgres": Campaign(model_on_postgres, "examples", 10, 60, 1_000),
    "mutants": Campaign(
        lambda n, _: mutation_campaign(MUTANTS, n), "examples each", 0, 700, 2_000
    ),
    "power": Campaign(
        lambda n, seed: power_cut_campaign(n, seed=seed), "cuts", 100, 700, 50_000
    ),
    "power-without-fsync": Campaign(power_without_fsync, "cuts", 50, 200, 2_000),
    "bit-rot": Campaign(bit_rot_campaign, "flips", 250, 1_000, 20_000),
    "full-disk": Campaign(full_disk_campaign, "rounds", 1, 4, 100),
    "simulator": Campaign(seed_campaign, "seeds", 2, 10, 1_000),
    "simulator-mutants": Campaign(lambda n, _: mutant_campaign(n), "seeds", 0, SEEDS, SEEDS),
    "kills": Campaign(kill_campaign, "kills", 3, 30, 1_000),
    "replica-kills": Campaign(replica_campaign, "kills", 3, 9, 200),
    "environment": Campaign(environment_outages, "rounds", 0, 0, 5),
    "trainer": Campaign(trainer_kills, "kills", 0, 0, 300),
    "mixed": Campaign(mixed_kills, "kills", 1, 3, 200),
    "cuts": Campaign(network_cuts, "s", 0, 3, 600),
    "healthy": Campaign(healthy_runs, "runs", 1, 1, 20),
    "fuzz": Campaign(
        lambda n, seed: in_own_process(fuzz_campaign, n, seed),
        "requests",
        2_000,
        10_000,
        10**6,
    ),
    "schemathesis": Campaign(schema_campaign, "s", 5, 25, 900),
    "bombs": Campaign(lambda n, seed: bomb_campaign(), "times", 1, 1, 1),
    "slow-readers": Campaign(lambda n, seed: slow_reader_campaign(n), "s", 1, 5, 90),
    "soak": Campaign(
        lambda n, seed: in_own_process(soak_campaign, n, seed), "batches", 30, 120, 1_440
    ),
}

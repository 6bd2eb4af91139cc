"""Campaigns over the stores of the queue: equality with a model, and bugs that it has to notice."""

from __future__ import annotations

from collections import Counter

from atroposlib.api.store import open_store
from tests.postgres_server import running_server
from tests.torture.campaign import Campaign
from tests.torture.figures import Figures, fast_folder
from tests.torture.queue.mutants import MUTANTS
from tests.torture.queue.mutation_job import mutation_campaign
from tests.torture.queue.queue_actions import MAX_BYTES
from tests.torture.queue.queue_machine import (
    PostgresMachine,
    QueueMachine,
    SqliteMachine,
    run_machine,
)


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


CAMPAIGNS: dict[str, Campaign] = {
    "model-memory": Campaign(model_on_memory, "examples", 40, 300, 5_000),
    "model-sqlite": Campaign(model_on_sqlite, "examples", 100, 600, 20_000),
    "model-postgres": Campaign(model_on_postgres, "examples", 10, 60, 1_000),
    "mutants": Campaign(
        lambda n, _: mutation_campaign(MUTANTS, n), "examples each", 0, 700, 2_000
    ),
}

"""Contract of every store for the index of rollouts."""

from __future__ import annotations

from atroposlib.api.store.sql.ledger import Arrivals, ChangedBatches, Members
from tests.api.store.store_talk import ack, claim, group, put, register


def test_the_ledger_lists_batches_that_changed(store):
    put(store, group("a"), group("b"), group("c"), group("d"))
    generation = register(store)
    first = claim(store, generation)
    second = claim(store, generation)
    ack(store, first, commit=True)
    rows = {row.no: row.state for row in store.ask(ChangedBatches(0))}
    assert rows == {1: "committed", 2: "open"}
    assert [row.no for row in store.ask(ChangedBatches(1))] == [2]
    assert store.ask(Members(2)) == second.members


def test_arrivals_are_those_of_groups_that_the_ledger_has(store):
    put(store, group("a", env=3, arrived=5.0, arrived_version=2))
    found = store.ask(Arrivals([1, 9]))
    assert found == {1: (3, "pending", None, 5.0, 2, 1)}


def test_kept_groups_come_in_pages(store):
    put(store, *[group(str(n)) for n in range(5)])
    assert store.kept_gids(0, 3) == [1, 2, 3]
    assert store.kept_gids(3, 3) == [4, 5]
    assert store.kept_gids(5, 3) == []

"""State of a persistent store after a restart."""

from __future__ import annotations

import pytest

from atroposlib.api.common.records import AdmissionGrant, GroupState
from atroposlib.api.store.sql.ack import Lookup, Rewind, last_turn
from atroposlib.api.store.sql.run import Admit, Admitted, LoadRun, reset_run
from tests.api.store.store_talk import ack, claim, group, put, register
from tests.api.store.stores import RESUMES

pytestmark = pytest.mark.parametrize("reopen", RESUMES, indirect=True)


def test_the_whole_state_survives_a_restart(reopen):
    store = reopen()
    put(store, group("a", 8, key="k"), group("b", 8), group("c", 2, env=1, expected=4))
    generation = register(store)
    acked = claim(store, generation, claim_id="one")
    ack(store, acked)
    leased = claim(store, generation, claim_id="two", world_size=2)
    ack(store, leased, rank=1)
    store.do(Admit(AdmissionGrant("lease", 1, 4, 99.0), 100, 0.0))
    before = (store.stats(), store.ask(LoadRun()), store.ask(last_turn))
    store.close()

    store = reopen()
    assert (store.stats(), store.ask(LoadRun()), store.ask(last_turn)) == before
    assert store.ask(Admitted(98.0)) == {1: 4}
    assert put(store, group("a", 8, key="k"))[0].state is GroupState.ACKED
    assert store.ask(Lookup(leased.no, generation, 1)) == leased
    assert ack(store, leased, rank=0)
    assert store.do(Rewind(0, generation)).replayed == 2
    assert claim(store, generation).members == acked.members
    assert put(store, group("d", 2, env=1, expected=4))[0].state is GroupState.PENDING


def test_a_lease_survives_a_restart(reopen):
    store = reopen()
    put(store, group("a", 8))
    generation = register(store)
    first = claim(store, generation, claim_id="one")
    store.close()
    store = reopen()
    assert claim(store, generation, claim_id="two", now=9.0) == "0 of 8"
    again = claim(store, generation, claim_id="one", now=9.0)
    assert (again.members, again.epoch) == (first.members, 2)


def test_ids_keep_increasing_after_a_restart_and_a_reset(reopen):
    store = reopen()
    put(store, group("a", 8))
    claim(store, register(store))
    store.do(reset_run)
    store.close()
    store = reopen()
    assert put(store, group("b", 8))[0].gid == 2
    assert claim(store, register(store)).no == 2

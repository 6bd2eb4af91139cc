"""Contract of every store for groups, the run and admissions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from atroposlib.api.common.records import (
    AdmissionGrant,
    GroupState,
    RunDocument,
    Selection,
    Stored,
)
from atroposlib.api.store import open_store
from atroposlib.api.store.sql.ack import After, Commit
from atroposlib.api.store.sql.put import LOST_REPLY_WINDOW_S, MarkReplies, ReplyInDoubt
from atroposlib.api.store.sql.run import Admit, Admitted, LoadRun, Release, SaveRun, reset_run
from atroposlib.errors import (
    ConfigError,
    CorruptPayload,
    KeyConflict,
    RunChanged,
    StaleGeneration,
)
from tests.api.store.store_talk import ack, claim, ended, group, held, put, register

# --- groups in ----------------------------------------------------------------------


def test_payloads_are_returned_byte_for_byte_in_the_requested_order(store):
    bodies = [b'{"a":  1.50}\n', bytes(range(256)) * 300, b"", b"\x28\xb5\x2f\xfd rest"]
    put(store, *map(group, bodies))
    assert store.read([4, 2, 1, 3]) == [bodies[3], bodies[1], bodies[0], bodies[2]]


def test_the_error_of_a_missing_payload_names_only_that_payload(store):
    put(store, group("a"), group("b"))
    with pytest.raises(CorruptPayload) as refused:
        store.read([9, 2, 0, 1, 2**70])
    assert refused.value.gids == (9, 0, 2**70)


def test_a_rejected_put_does_not_affect_concurrent_puts(store):
    put(store, group("x", key="k"))

    def post(i):
        try:
            return put(store, group("y", key="k") if i % 4 == 0 else group(f"{i}"), revision=0)
        except KeyConflict:
            return None

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(post, range(64)))
    assert sum(outcome is None for outcome in outcomes) == 16
    assert held(store) == 1 + 48


def test_a_repeat_of_a_group_whose_reply_was_lost_is_absorbed_once(store):
    [first, other] = put(store, group("a", 8), group("a", 8, env=3))
    with pytest.raises(ReplyInDoubt):
        put(store, group("a", 8))
    batch = claim(store, register(store), choose=lambda *_: Selection(gids=(first.gid,)))
    ack(store, batch, commit=True)
    store.do(MarkReplies(confirmed=[other.gid], lost=[first.gid]))
    [again] = put(store, group("a", 8))
    assert again == Stored(first.gid, duplicate=True, state=GroupState.COMMITTED)
    store.do(MarkReplies(confirmed=[first.gid]))
    assert not any(one.duplicate for one in put(store, group("a", 8), group("a", 8, env=3)))


def test_a_lost_reply_is_forgotten_after_a_minute(store):
    [first] = put(store, group("a", arrived=1.0))
    store.do(MarkReplies(lost=[first.gid]))
    later = 1.5 + LOST_REPLY_WINDOW_S
    assert not put(store, group("a", arrived=later))[0].duplicate


# --- the bound ----------------------------------------------------------------------


# --- buffers ------------------------------------------------------------------------


# --- the run ------------------------------------------------------------------------


def test_a_new_store_has_no_run(store):
    run = store.ask(LoadRun())
    assert (run.revision, run.generation, run.body) == (0, 0, None)


def test_a_run_is_saved_only_from_its_latest_revision(store):
    saved = store.do(SaveRun(b"one", 0))
    assert saved == store.ask(LoadRun())
    assert (saved.revision, saved.generation, saved.body) == (1, 0, b"one")
    with pytest.raises(RunChanged):
        store.do(SaveRun(b"two", 0))
    assert store.ask(LoadRun()).body == b"one"
    assert store.do(SaveRun(b"two", 1, fence=True)).generation == 1
    assert store.stats().revision == 2


def test_environments_are_saved_one_by_one_beside_the_run_and_read_from_any_on(store):
    store.do(SaveRun(b"one", 0, envs={env: b"%d" % env for env in (2, 10, 11)}))
    assert store.ask(LoadRun()).envs == (b"2", b"10", b"11")
    store.do(SaveRun(b"two", 1, envs={2: None, 10: b"left", 30: b"30"}))
    assert store.ask(LoadRun()) == RunDocument(2, 0, b"two", (b"left", b"11", b"30"))
    assert store.ask(LoadRun(10)).envs == (b"11", b"30") and store.ask(LoadRun(30)).envs == ()
    with pytest.raises(RunChanged):
        store.do(SaveRun(b"late", 1, envs={31: b"31"}))
    assert store.ask(LoadRun(11)).envs == (b"30",)
    assert store.do(reset_run) == store.ask(LoadRun())


def test_versions_of_queued_groups_after_a_fork_count_as_older(store):
    versions = [(29, 30), (30, 30), (31, 31), (32, 33), (70, 70), (None, 31)]
    put(store, *(group(version=v, arrived_version=a) for v, a in versions), revision=0)
    store.do(SaveRun(b"run", 0, fence=True, fork=30))
    seen = []
    claim(store, 1, size=24, choose=lambda queue, _: seen.extend(queue) or Selection())
    found = [(one.version, one.arrived_version) for one in seen]
    assert found == [(29, 30), (30, 30), (29, 30), (28, 30), (0, 30), (None, 30)]


def test_a_rewind_can_be_looked_at_without_a_generation(store):
    assert store.ask(After(0)) == (0, 0)
    put(store, *(group(n_seq=8) for _ in range(3)))
    generation = register(store)
    for _ in range(2):
        ack(store, claim(store, generation))
    store.do(Commit(1, generation))
    assert [store.ask(After(no)) for no in (0, 1, 2)] == [(2, 1), (2, 0), (2, 0)]


def test_exactly_one_of_several_concurrent_saves_succeeds(store):
    def save(i):
        try:
            return store.do(SaveRun(f"{i}".encode(), 0, fence=True))
        except RunChanged:
            return None

    with ThreadPoolExecutor(8) as pool:
        saved = [run for run in pool.map(save, range(16)) if run]
    assert len(saved) == 1 and store.ask(LoadRun()) == saved[0]


def test_a_reset_deletes_all_groups_and_fences_every_client(store):
    put(store, group("a", 8, key="k"), group("b", 2, env=1, expected=4))
    generation = register(store)
    batch = claim(store, generation)
    store.do(Admit(AdmissionGrant("lease", None, 4, 99.0), 100, 0.0))
    before = store.ask(LoadRun())
    after = store.do(reset_run)
    assert after == store.ask(LoadRun()) and after.body is None
    assert (after.revision, after.generation) == (before.revision + 1, generation + 1)
    stats = store.stats()
    assert stats.group_counts == () and ended(store) == {}
    assert (stats.retained_bytes, stats.batches_open, stats.delivered) == (0, 0, 0)
    assert sum(store.ask(Admitted(0.0)).values()) == 0
    with pytest.raises(StaleGeneration):
        ack(store, batch)
    [stored] = put(store, group("other", 8, key="k"))
    assert not stored.duplicate and stored.gid > max(batch.gids)
    assert claim(store, register(store)).no > batch.no


# --- admission ----------------------------------------------------------------------


def asked(admission_id, n_seq=8, until=10.0):
    return AdmissionGrant(admission_id, 0, n_seq, until)


def test_an_admission_is_granted_within_the_budget(store):
    assert store.do(Admit(asked("a"), 12, now=0.0)) == 8
    assert store.do(Admit(asked("b"), 12, now=0.0)) == 4
    assert store.do(Admit(asked("c"), 12, now=0.0)) == 0
    assert store.do(Admit(asked("d"), -5, now=0.0)) == 0
    assert sum(store.ask(Admitted(0.0)).values()) == 12


def test_a_repeated_admission_returns_the_same_grant_with_the_later_expiry(store):
    store.do(Admit(asked("a", until=10.0), 8, now=0.0))
    assert store.do(Admit(asked("a", until=5.0), 0, now=1.0)) == 8
    assert store.do(Admit(asked("a", n_seq=99, until=20.0), 0, now=1.0)) == 8
    assert (
        sum(store.ask(Admitted(19.9)).values()) == 8
        and sum(store.ask(Admitted(20.0)).values()) == 0
    )


def test_an_admission_expires_or_is_released(store):
    store.do(Admit(asked("a"), 16, now=0.0))
    store.do(Admit(asked("b", until=5.0), 16, now=0.0))
    assert (
        store.do(Release("a"))
        and not store.do(Release("a"))
        and not store.do(Release("never"))
    )
    assert (
        sum(store.ask(Admitted(4.9)).values()) == 8
        and sum(store.ask(Admitted(5.0)).values()) == 0
    )
    assert store.do(Admit(asked("c"), 8, now=5.0)) == 8


def test_accepted_sequences_count_against_the_budget_until_they_are_dropped(store):
    put(store, group("a", 8), group("b", 8), group("c", 8))
    generation = register(store)
    ack(store, claim(store, generation))
    ack(store, claim(store, generation), commit=True)
    assert store.do(Admit(asked("x"), 25, now=0.0)) == 1
    claim(
        store,
        generation,
        choose=lambda queue, fair_share: Selection(dropped=tuple(g.gid for g in queue)),
    )
    assert store.do(Admit(asked("y"), 25, now=0.0)) == 8


# --- the rest -----------------------------------------------------------------------


def test_a_store_can_be_closed_twice(store):
    store.close()
    store.close()


def test_the_error_of_an_unknown_store_names_it():
    for name in ("redis", "redis://host/0", "postgresql", "memory://"):
        with pytest.raises(ConfigError, match="memory, sqlite and postgresql://"):
            open_store(name)
    with pytest.raises(ConfigError, match="--data-dir"):
        open_store("sqlite")

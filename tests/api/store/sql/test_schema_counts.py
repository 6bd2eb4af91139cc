"""The counts of ``stats`` are kept step by step: after anything they equal a recount."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, strategies as st

from atroposlib.api.common.records import HELD, AdmissionGrant, GroupState, Selection
from atroposlib.api.store.sql import claim as claim_queries
from atroposlib.api.store.sql.ack import Commit, Discard, Rewind
from atroposlib.api.store.sql.run import Admit, reset_run
from atroposlib.api.store.sql.schema import env_of
from atroposlib.errors import KeyConflict, StaleGeneration
from tests.api.store.store_talk import ack, claim, group, put, register
from tests.examples import examples

SMALL = st.integers(0, 3)
VERBS = ("put",) * 4 + ("claim",) * 4 + ("ack",) * 3 + ("commit", "rewind", "discard")
STEPS = st.tuples(st.sampled_from((*VERBS, "admit", "register")), SMALL, SMALL, SMALL)


def recount(connection):
    """All that ``stats`` counts, from the rows of groups and batches."""
    held, ends, retained = {}, {}, 0
    rows = connection.execute("SELECT state, env, n_seq, n_bytes FROM groups")
    for state, env, n_seq, n_bytes in rows:
        state = GroupState(state)
        if state in HELD:
            groups, size = held.get((state, env_of(env), n_seq), (0, 0))
            held[state, env_of(env), n_seq] = (groups + 1, size + n_bytes)
        else:
            groups, sequences = ends.get(state, (0, 0))
            ends[state] = (groups + 1, sequences + n_seq)
        if state not in (GroupState.COMMITTED, GroupState.DROPPED):
            retained += n_bytes
    batches = dict(connection.execute("SELECT state, COUNT(*) FROM batch GROUP BY state"))
    [(generation,)] = connection.execute("SELECT generation FROM meta")
    sql = "SELECT COUNT(*) FROM batch WHERE generation = ?"
    [(delivered,)] = connection.execute(sql, (generation,))
    acked = batches.get("acked", 0) + batches.get("committed", 0)
    counts = (batches.get("open", 0), acked, batches.get("dead", 0), delivered)
    stored = {gid for (gid,) in connection.execute("SELECT gid FROM payload")}
    kept = connection.execute(
        "SELECT gid FROM groups WHERE state NOT IN ('committed', 'dropped')"
    )
    return held, ends, retained, counts, stored == {gid for (gid,) in kept}


def counted(stats):
    return (
        {(t.state, t.env, t.n_seq): (t.groups, t.n_bytes) for t in stats.group_counts},
        {end: (t.groups, t.sequences) for end, t in stats.totals.items() if t.groups},
        stats.retained_bytes,
        (stats.batches_open, stats.batches_acked, stats.batches_dead, stats.delivered),
        True,
    )


class Run:
    """Takes steps; most of them mean something to the state they meet."""

    def __init__(self, store):
        store.do(reset_run)
        self.store, self.now, self.batches = store, 0.0, []
        self.generation = register(store)
        put(store, *(group("xx", 2, version=i) for i in range(8)))

    def take(self, verb, a, b, c):
        store, now = self.store, self.now
        self.now += 3.0
        if verb == "put":
            expected = 4 if a == 3 else None
            # Equal groups without a key would be repetitions of one post.
            names = [f"{now}" + "x" * n for n in (a, 4)]
            sizes = zip(names, (a + 1, 2))
            groups = [group(name, n, env=b or None, version=c) for name, n in sizes]
            keyed = group("k" * (c // 3), 2, env=b, expected=expected, key=f"k{c}")
            put(store, *groups, keyed)
        elif verb == "claim":
            tries = {"claim_id": f"{b}", "max_deliveries": c + 1}
            size = 6 if c == 3 else 4
            batch = claim(
                store, self.generation, size, now, _chooser(size, drops=c == 2), **tries
            )
            self.batches += [] if isinstance(batch, str) else [batch]
        elif verb == "admit":
            store.do(Admit(AdmissionGrant(f"{a}", None, b, now + c), 8, now))
        elif verb == "register":
            self.generation = register(store)
        elif self.batches:
            self.end(self.batches[-1 - a % len(self.batches)], verb, b, c)

    def end(self, batch, verb, b, c):
        if verb == "ack":
            ack(self.store, batch, commit=c == 0)
        elif verb == "commit":
            self.store.do(Commit(batch.no, self.generation))
        elif verb == "rewind":
            self.store.do(Rewind(batch.no - 1, self.generation))
        else:
            self.store.do(Discard(batch.no, batch.gids[b:]))


def _chooser(size, drops):
    def choose(queue, fair_share):
        stale = tuple(one.gid for one in queue if drops and one.version == 0)
        gids, room = [], size
        for one in queue:
            if one.gid not in stale and one.n_seq <= room:
                gids.append(one.gid)
                room -= one.n_seq
        return Selection(gids=() if room else tuple(gids), dropped=stale)

    return choose


@pytest.mark.slow
@examples(
    30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEPS, min_size=15, max_size=30))
def test_the_counts_equal_a_recount_after_every_step(store, steps):
    run = Run(store)
    for step in steps:
        with suppress(StaleGeneration, KeyConflict):
            run.take(*step)
        assert counted(store.stats()) == store.ask(recount)


@pytest.fixture(autouse=True)
def whole_ledger(monkeypatch):
    """Nothing is pruned: a pruned row cannot be counted again."""
    monkeypatch.setattr(claim_queries, "LEDGER_GROUPS", 10**9)

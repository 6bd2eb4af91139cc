"""Any sequence of calls and crashes, against a model of a few lines."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from atroposlib.api.batching import select
from atroposlib.api.records import GroupState, NewGroup
from atroposlib.api.store.memory import MemoryStore
from atroposlib.api.store.sqlite import DATABASE, SqliteStore
from atroposlib.errors import Fenced, KeyConflict

SIZE = 8


class StoreModel(RuleBasedStateMachine):
    """``queue``, ``leased`` and ``acked`` hold keys; each group has one."""

    keys = Bundle("keys")
    batches = Bundle("batches")

    def __init__(self):
        super().__init__()
        self.store = self.open()
        self.payloads = {}  # key -> (payload, n_seq)
        self.gids = {}
        self.where = {}  # key -> state
        self.generation = 0
        self.leased = None  # (no, epoch, generation, keys)
        self.acked_batches = set()
        self.now = 0.0

    def open(self):
        return MemoryStore()

    @rule(target=keys, n_seq=st.sampled_from([1, 2, 3, 4, 8]), buffered=st.booleans())
    def put(self, n_seq, buffered):
        key = f"k{len(self.payloads)}"
        payload = f"payload of {key}".encode()
        [stored] = self.store.put([NewGroup(payload, n_seq, key=key, buffered=buffered)])
        assert not stored.duplicate
        self.payloads[key] = (payload, n_seq)
        self.gids[key] = stored.gid
        self.where[key] = GroupState.BUFFERED if buffered else GroupState.PENDING
        return key

    @rule(key=keys)
    def retry(self, key):
        payload, n_seq = self.payloads[key]
        [stored] = self.store.put([NewGroup(payload, n_seq, key=key)])
        assert (stored.duplicate, stored.gid) == (True, self.gids[key])
        assert stored.state is self.where[key]

    @rule(key=keys)
    def reuse_a_key(self, key):
        try:
            self.store.put([NewGroup(b"fresh", 1), NewGroup(b"other", 1, key=key)])
        except KeyConflict:
            return
        raise AssertionError("a key with other content was taken")

    @rule(key=keys)
    def release(self, key):
        self.store.release([self.gids[key]])
        if self.where[key] is GroupState.BUFFERED:
            self.where[key] = GroupState.PENDING

    @rule()
    def register(self):
        generation = self.store.register()
        assert generation > self.generation
        self.generation = generation

    @rule(target=batches, lease_s=st.sampled_from([1.0, 100.0]))
    def claim(self, lease_s):
        got = self.store.claim(
            self.generation, SIZE, lambda q: select(q, SIZE, {}), self.now, lease_s
        )
        if isinstance(got, str):
            assert self.leased is None
            return None
        keys = [key for gid in got.gids for key, g in self.gids.items() if g == gid]
        if self.leased is not None:
            no, epoch, _, before = self.leased
            assert (got.no, got.epoch, keys) == (no, epoch + 1, before)
        else:
            assert got.no not in self.acked_batches and got.epoch == 1
            assert all(self.where[key] is GroupState.PENDING for key in keys)
            assert sum(self.payloads[key][1] for key in keys) == SIZE
        assert self.store.read(got.gids) == [self.payloads[key][0] for key in keys]
        for key in keys:
            self.where[key] = GroupState.LEASED
        self.leased = (got.no, got.epoch, self.generation, keys)
        return (got.no, got.epoch, self.generation)

    @rule(batch=batches)
    def extend(self, batch):
        self.act_as_owner(batch, lambda: self.store.extend(*self.ordered(batch), self.now + 5))

    @rule(batch=consumes(batches))
    def ack(self, batch):
        if batch is None:
            return
        first = self.act_as_owner(batch, lambda: self.store.ack(*self.ordered(batch)))
        if first and batch[0] not in self.acked_batches:
            for key in self.leased[3]:
                self.where[key] = GroupState.ACKED
            self.acked_batches.add(batch[0])
            self.leased = None
            assert self.store.ack(*self.ordered(batch)) is False

    @staticmethod
    def ordered(batch):
        no, epoch, generation = batch
        return no, generation, epoch

    def act_as_owner(self, batch, act):
        if batch is None:
            return None
        owns = batch == (self.leased or ())[:3] and batch[2] == self.generation
        try:
            done = act()
        except Fenced:
            assert not owns
            return False
        assert owns
        return done is not False

    @rule(seconds=st.sampled_from([0.5, 50.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @invariant()
    def every_group_is_in_exactly_one_place(self):
        stats = self.store.stats()
        for state in (GroupState.BUFFERED, GroupState.PENDING, GroupState.LEASED):
            expected = [key for key, where in self.where.items() if where is state]
            assert sum(t.groups for t in stats.tallies if t.state is state) == len(expected)
        assert stats.batches_acked == len(self.acked_batches)

    def teardown(self):
        self.store.close()


class SqliteModel(StoreModel):
    """The same, with crashes: a copy of the files as they are, opened as if after a kill."""

    def open(self):
        self.folder = Path(tempfile.mkdtemp(prefix="store-model-"))
        self.lives = 0
        return SqliteStore(self.folder / "0")

    @rule()
    def crash(self):
        before = self.folder / str(self.lives)
        self.lives += 1
        after = self.folder / str(self.lives)
        after.mkdir()
        for name in (DATABASE, DATABASE + "-wal"):
            if (before / name).exists():
                shutil.copy(before / name, after / name)
        self.store.close()
        self.store = SqliteStore(after)

    def teardown(self):
        super().teardown()
        shutil.rmtree(self.folder)


TestMemoryModel = StoreModel.TestCase
TestMemoryModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSqliteModel = SqliteModel.TestCase
TestSqliteModel.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

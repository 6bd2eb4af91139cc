"""Indexer: a thread that writes the index, so that posts and acks never wait for it.

    posts, events, notes --submit--> [bounded queue] --thread--> index
                    ledger and payloads of the store --sync, fill--^

If the queue is full, records are skipped and counted, and groups are filled in later from the
store. After a restart the thread compares the ids of the store with the ids of the index.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import astuple

import apsw
import msgspec

from atroposlib.api.archive.index import Index
from atroposlib.api.archive.records import (
    BatchFact,
    DropFact,
    EventFact,
    GroupStates,
    NotesFact,
    Record,
    RowFacts,
    RunFacts,
)
from atroposlib.api.codec.row_facts import facts_of
from atroposlib.api.decisions.run_state import run_of
from atroposlib.api.store import Store
from atroposlib.api.store.sql.claim import LEDGER_GROUPS
from atroposlib.api.store.sql.ledger import Arrivals, ChangedBatches, Members
from atroposlib.api.store.sql.run import LoadRun, run_start
from atroposlib.errors import CorruptPayload, InvalidGroup, StoreError, surviving
from atroposlib.wire.binary import PackedGroup
from atroposlib.wire.safetensors import MalformedBody

log = logging.getLogger(__name__)

MAX_WAITING = 65_536  # records and rows in the queue
MAX_RECORDS = 512  # per transaction
GATHER_S = 0.2  # records of this time share a transaction, and a wake of the thread
SYNC_S = 1.0  # least time between two looks at the ledger
FILL_S = 60.0  # between two comparisons with the ids of the store
FILL_GROUPS = 1000  # ids compared at a time
MAX_FILLED = 32  # groups read per transaction
CLOSE_S = 10.0
_NOT_STORED = frozenset({"groups"})  # event of a post: its rows show it
_QUIET = frozenset({"policy_version", "env_joined", "env_left", "registered", "started"})
FAILED_S = 1.0  # pause after a turn that ended by a bug
# Raised for values that a record or the database cannot hold.
_UNFIT = (OverflowError, ValueError, TypeError, RecursionError, apsw.TooBigError)
_NEW_RUN = threading.Event()  # mark in the queue: records after it may be of another run
_HELD = "('buffered', 'pending', 'leased', 'acked', 'dead')"


class Indexer:
    """Writer of ``index``. The thread starts with the first record."""

    def __init__(self, index: Index, store: Store) -> None:
        self.index, self._store = index, store
        self._queue: deque[Record | threading.Event] = deque([_NEW_RUN])
        self._weight = 0  # sum of the weights in the queue
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._open = True
        self._dirty = self._behind = True  # batches changed; groups may be missing
        self._synced_at = self._filled_at = float("-inf")
        self._known: dict[int, tuple[object, ...]] = {}  # batches that are not committed
        self._settled = 0  # all batches up to this number are committed
        self._held_changed = True  # groups left the queue in another way than by a batch
        self.skipped = 0  # records
        self.unfit = 0  # records with values that the index cannot hold
        self.failures = 0  # turns of the thread that ended by a bug
        self._unfit_gids: set[int] = set()
        self._failing = self._again = False

    # --- any thread -----------------------------------------------------------------

    def submit(self, record: Record) -> bool:
        """Queue a record without waiting. False: the queue is full, and it was skipped."""
        weight = _weight_of(record)
        with self._wake:
            if not self._open:
                return False
            if self._weight + weight > MAX_WAITING:
                self.skipped += 1
                self._behind |= isinstance(record, RowFacts)
                return False
            self._weight += weight
            self._queue.append(record)
            self.start()
            # otherwise the thread is awake, or gathers
            if len(self._queue) in (1, MAX_RECORDS):
                self._wake.notify()
        return True

    def on_event(self, name: str, kind: str, at: float, values: Mapping[str, object]) -> None:
        """Store an event, and look at the ledger if it changed."""
        if kind in _NOT_STORED:
            return
        if kind not in _QUIET:
            self._held_changed |= kind not in ("batch", "acked", "committed")
            self._dirty = True
        self.submit(EventFact(name, kind, at, values))

    def begin_run(self) -> None:
        """The records so far are of the run before, if the store has begun the next."""
        self._put(_NEW_RUN)

    def flush(self, timeout_s: float = CLOSE_S) -> bool:
        """Wait until all records so far, and the ledger as of now, are in the index."""
        done, self._dirty = threading.Event(), True
        self._put(done)
        return done.wait(timeout_s)

    def _put(self, barrier: threading.Event) -> None:
        with self._wake:
            self._queue.append(barrier)
            self.start()
            self._wake.notify()

    def complete(self, again: bool = False) -> None:
        """Fill in here, without the thread, what the index misses; ``again``: all facts anew."""
        self._again = again
        self._sync()
        self._fill()
        self._sync()

    def start(self) -> None:
        """Start the thread, which fills gaps of the index."""
        with self._wake:
            if self._thread is None and self._open:
                self._thread = threading.Thread(target=self._run, name="indexer", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Write what is queued, within ``CLOSE_S``, and close the index. Idempotent."""
        with self._wake:
            self._open = False
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
        if self._thread is None or not self._thread.is_alive():
            self.index.close()

    # --- the thread -----------------------------------------------------------------

    def _run(self) -> None:
        while True:
            taken = self._next_records()
            records = [item for item in taken if not isinstance(item, threading.Event)]
            barriers = [item for item in taken if isinstance(item, threading.Event)]
            with surviving(self._on_bug):
                self._index(records, barriers)
            for barrier in barriers:
                barrier.set()
            if not self._open and not self._queue:
                return

    def _index(self, records: list[Record], barriers: list[threading.Event]) -> None:
        try:
            if _NEW_RUN in barriers:
                self._begin_run()
            if records:
                self._write(records)
            if barriers or not self._open or self._due():
                self._sync()
                self._fill()
            self._failing = False
        except (apsw.Error, OSError, StoreError) as error:
            self._dirty = self._behind = True
            self.skipped += len(records)
            if not self._failing:
                log.warning("the index of rollouts is not written: %s", error)
            self._failing = True

    def _on_bug(self, bug: Exception) -> None:
        self._dirty = self._behind = True
        self.failures += 1
        log.error("the indexer goes on after a bug", exc_info=bug)
        time.sleep(FAILED_S)

    def _write(self, records: list[Record]) -> None:
        """Write the records, without records whose values the index cannot hold."""
        try:
            self.index.write(records)
        except _UNFIT:
            for record in records:
                try:
                    self.index.write([record])
                except _UNFIT as error:
                    self._skip(record.gid if isinstance(record, RowFacts) else None, error)

    def _skip(self, gid: int | None, error: Exception) -> None:
        self.unfit += 1
        if gid is not None and len(self._unfit_gids) < MAX_WAITING:
            self._unfit_gids.add(gid)
        where = "" if gid is None else f" of group {gid}"
        log.warning("a record%s is not in the index of rollouts: %s", where, error)

    def _next_records(self) -> list[Record | threading.Event]:
        """The next records; none after ``SYNC_S``, or when it closes."""
        with self._wake:
            if self._wake.wait_for(lambda: self._queue or not self._open, timeout=SYNC_S):
                self._wake.wait_for(self._is_urgent, timeout=GATHER_S)
            taken = [self._queue.popleft()] if self._queue else []
            while self._queue and len(taken) < MAX_RECORDS and self._queue[0] is not _NEW_RUN:
                taken.append(self._queue.popleft())
            self._weight -= sum(map(_weight_of, taken))
            self._weight = max(self._weight, 0) if self._queue else 0
            return taken

    def _is_urgent(self) -> bool:
        flushed = any(isinstance(item, threading.Event) for item in self._queue)
        return flushed or not self._open or len(self._queue) >= MAX_RECORDS

    def _due(self) -> bool:
        now = time.monotonic()
        return now - self._synced_at >= SYNC_S and (self._dirty or self._fill_due(now))

    def _fill_due(self, now: float) -> bool:
        return self._behind or now - self._filled_at >= FILL_S

    # --- the ledger -----------------------------------------------------------------

    def _sync(self) -> None:
        """Bring states and batches of the rows up to date with the ledger."""
        self._synced_at = time.monotonic()
        if not self._dirty:
            return
        self._dirty = False
        self._begin_run()
        rows = {row.no: row for row in self._store.ask(ChangedBatches(self._settled))}
        facts: list[Record] = []
        for no, row in rows.items():
            if self._known.get(no) != astuple(row):
                gids = tuple(member.gid for member in self._store.ask(Members(no)))
                facts.append(BatchFact(row, gids))
        # Dissolved, dropped, or of a run that was reset.
        gone = self._known.keys() - rows.keys()
        everything = bool(gone) or self._held_changed
        self._held_changed = False
        facts += self._changed_states(_HELD if everything else "('buffered')")
        if facts:
            self.index.write(facts)
        for no in gone:
            self.index.change("UPDATE batch SET state = 'dissolved' WHERE no = ?", (no,))
            self.index.change("DELETE FROM rollup WHERE batch_no = ?", (no,))
        self._known = {
            no: astuple(row) for no, row in rows.items() if row.state != "committed"
        }
        last = max(rows, default=self._settled)
        self._settled = min(self._known, default=last + 1) - 1

    def _begin_run(self) -> None:
        """Set the index aside if the store has begun another run since."""
        begun = self._store.ask(run_start)
        if begun != self.index.begun:
            self.index.write(self._changed_states(_HELD))
            self.index.begin_run(begun)
            self._known, self._settled = {}, begun[1]
            self._dirty = self._behind = self._held_changed = True
        run = RunFacts.of(run_of(self._store.ask(LoadRun())))
        if run.run_id and run != self.index.run:
            self.index.set_value("run", msgspec.json.encode(run).decode())

    def _changed_states(self, states: str) -> list[Record]:
        """Groups in ``states`` in the index, and in a different state in the ledger."""
        sql = "SELECT DISTINCT gid, state, batch_no FROM rollout WHERE state <> 'committed' "
        sql += f"AND state IN {states}"  # the first condition is that of rollout_held
        shown = {gid: (state, no) for gid, state, no in self.index.read(sql)}
        gids = list(shown)
        changed: dict[int, tuple[str, int | None] | None] = {}
        for start in range(0, len(gids), FILL_GROUPS):
            some = gids[start : start + FILL_GROUPS]
            ledger = self._store.ask(Arrivals(some))
            for gid in some:
                now = (ledger[gid].state, ledger[gid].batch_no) if gid in ledger else None
                if now != shown[gid]:
                    changed[gid] = now
        return [GroupStates(changed)] if changed else []

    # --- what is missing --------------------------------------------------------------

    def _fill(self) -> None:
        """Add groups of the store that the index lacks, and remove rows of freed groups."""
        if not self._fill_due(time.monotonic()):
            return
        self._behind = False
        after, added = self._cursor(), False
        while ids := self._store.kept_gids(after, FILL_GROUPS):
            sql = "SELECT gid FROM rollout WHERE row = 0 AND gid BETWEEN ? AND ?"
            known = {gid for (gid,) in self.index.read(sql, (ids[0], ids[-1]))}
            known |= self._unfit_gids
            missing = [gid for gid in ids if self._again or gid not in known]
            for start in range(0, len(missing), MAX_FILLED):
                self._add(missing[start : start + MAX_FILLED])
            added |= bool(missing)
            after = ids[-1]
            with self._wake:
                if self._queue or not self._open:  # news first; the rest at the next turn
                    self._behind = True
                    break
        self.index.set_value("cursor", after)
        self._remove_freed(after - LEDGER_GROUPS)
        self._filled_at = time.monotonic()
        if added:  # batches of groups that came after their batch
            self._known, self._settled, self._dirty = {}, self.index.begun[1], True

    def _cursor(self) -> int:
        last = 0 if self._again else int(self.index.value("cursor") or 0)
        return max(self.index.begun[0], last - FILL_GROUPS)

    def _add(self, gids: list[int]) -> None:
        ledger = self._store.ask(Arrivals(gids))
        names = {env.env_id: env.wandb_name for env in run_of(self._store.ask(LoadRun())).envs}
        records: list[Record] = []
        for gid in gids:
            try:
                [payload] = self._store.read([gid], retired=True)
                group = PackedGroup(payload)
                head, facts = group.head, facts_of(group)
            except (CorruptPayload, InvalidGroup, MalformedBody):
                continue  # freed meanwhile, or damaged
            except _UNFIT as error:
                self._skip(gid, error)
                continue
            here = ledger.get(gid)
            env = head.env_id if here is None else here.env
            label = (head.rest_value("metadata") or {}).get("env")
            named = label if isinstance(label, str) else None  # label in a file of groups
            records.append(
                RowFacts(
                    gid,
                    named if env is None else names.get(env) or f"env {env}",
                    None if here is None else here.arrived,
                    None if here is None else here.arrived_version,
                    "committed" if here is None else here.state,
                    facts,
                    None if here is None else here.batch_no,
                )
            )
        self._write(records)

    def _remove_freed(self, last: int) -> None:
        """Remove rows of old groups whose payloads are freed; the oldest are freed first."""
        after = self.index.begun[0]
        while True:
            sql = "SELECT gid FROM rollout WHERE row = 0 AND gid > ? AND gid <= ? ORDER BY gid LIMIT ?"
            shown = [gid for (gid,) in self.index.read(sql, (after, last, FILL_GROUPS))]
            if not shown:
                return
            kept = self._store.kept_gids(after, FILL_GROUPS)
            seen = kept[-1] if len(kept) == FILL_GROUPS else last
            freed = [gid for gid in shown if gid <= seen and gid not in set(kept)]
            if not freed:
                return
            for table in ("rollout", "note"):
                self.index.change(
                    f"DELETE FROM {table} WHERE gid IN (SELECT value FROM json_each(?))",
                    (msgspec.json.encode(freed).decode(),),
                )
            after = min(seen, shown[-1])


def _weight_of(record: Record | threading.Event) -> int:
    """Share of a record in the queue: a row, 64 tokens of notes or 1 KiB of samples count 1."""
    if isinstance(record, DropFact):
        return 1 + len(record.sample or b"") // 1024
    if isinstance(record, NotesFact):
        return len(record.rows) + record.notes.advantages.nbytes // 256
    return len(record.facts.rows) if isinstance(record, RowFacts) else 1

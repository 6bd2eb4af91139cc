"""Store: the guarantees of the queue, over the reads and writes of a database.

    put: BUFFERED --complete--> PENDING --claim--> LEASED --ack--> ACKED --commit--> COMMITTED
                                 |  ^                |  ^            |
                          drop <-'  '--- dissolve ---'  '-- rewind --'      (DROPPED, DEAD)

Every method is atomic, blocking and thread-safe; its effect is durable when it returns. The
unit of delivery is an immutable numbered batch. Batches without an ack are delivered again,
whole and identical. A trainer that saves the number of its last batch in its checkpoint,
and rewinds to it, trains on each group exactly once.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from atroposlib.api.common.records import (
    AdmissionGrant,
    BatchMember,
    BatchTurn,
    BufferPolicy,
    Chooser,
    Claim,
    CommitResult,
    DeadBatch,
    LeasedBatch,
    NewGroup,
    RewindResult,
    RunDocument,
    Stored,
    StoreStats,
    digest_of,
)
from atroposlib.api.store.sql import ack as ack_queries
from atroposlib.api.store.sql import claim as claim_queries
from atroposlib.api.store.sql import ledger
from atroposlib.api.store.sql import put as put_queries
from atroposlib.api.store.sql import run as run_queries
from atroposlib.api.store.sql.claim import BatchRow
from atroposlib.api.store.sql.ledger import Arrival
from atroposlib.api.store.sql.put import Put
from atroposlib.api.store.sql.schema import (
    MAX_INT64,
    Connection,
    DamagedRow,
    QueueMeta,
    Row,
    for_all,
    stats,
)
from atroposlib.api.store.sql.writer import Read, Writer, result_of
from atroposlib.errors import ConfigError, CorruptPayload, StoreFull

DEFAULT_MAX_BYTES = 16 * 2**30


class Store(ABC):
    """A durable queue of groups, the batches made of them, and the state of the run.

    Calls with a ``generation`` raise StaleGeneration if it is not the current one, or if
    there is no such batch; those with an ``epoch`` also if a later delivery owns the batch,
    or if it is dead.

    Args:
        writer: runs operations under an exclusive write lock; durable when it replies.
        read: runs one on a single snapshot of the tables, without waiting for a writer.
        max_bytes: bound on ``StoreStats.retained_bytes``, the payloads of all groups held.
    """

    shared = False  # whether other processes use the same data
    archive: Path | None = None  # file of the index of rollouts; None: in memory

    def __init__(self, writer: Writer, read: Read, max_bytes: int) -> None:
        self._writer, self._write = writer, writer.do
        self._read, self.max_bytes = read, max_bytes

    @abstractmethod
    def close(self) -> None:
        """Finish pending operations and close files and connections. Idempotent."""

    def now(self) -> float:
        """The wall clock (s) of leases, which outlive the process; one for all replicas."""
        return time.time()

    def _keep(self, connection: Connection, gid: int, body: bytes) -> None:
        """Store a payload inside a put."""
        connection.execute("INSERT INTO payload VALUES (?, ?)", (gid, body))

    _stored: tuple[str, type] = ("body", bytes)  # columns of a payload, and their type
    _archived: str | None = None  # SQL of digest and these columns of a retired group

    def _payloads(self, rows: Iterable[Row]) -> Iterable[bytes]:
        """The payloads of rows of digest and the columns of a payload, or wrong bytes if they
        are damaged. Called outside of any transaction."""
        return (row[1] for row in rows)

    # --- groups in ----------------------------------------------------------------

    def put(
        self,
        groups: Sequence[NewGroup],
        revision: int,
        complete: BufferPolicy,
        confirmed: Sequence[int] = (),
        doubt: bool = True,
    ) -> list[Stored]:
        """Store all groups or none; the results are in the order of ``groups``.

        A group with a known key is absorbed, also after its commit. A group with
        ``expected`` is buffered. Then ``complete`` gets the buffer of its env, oldest first,
        repeatedly until it returns no gids; the gids that it returns are queued. Of each
        size it gets the oldest ``expected // n_seq`` groups, so the cost does not grow with
        a buffer that never completes.

        A group without a key is absorbed if it equals one whose reply is known to be lost
        (:meth:`mark`), once for each. ``confirmed`` are groups whose senders got their replies
        meanwhile. Without ``doubt`` an unknown reply counts as lost.

        Raises:
            ReplyInDoubt: nothing is known yet of the reply to an equal group.
            RunChanged: ``revision`` is not that of the run document: read the run again.
            KeyConflict: a key is known with other content.
            StoreFull: the put would exceed the bound on retained bytes or use the reserve
                of free space; duplicates are still absorbed.
        """
        return result_of(self.submit_put(groups, revision, complete, confirmed, doubt))

    def submit_put(
        self,
        groups: Sequence[NewGroup],
        revision: int,
        complete: BufferPolicy,
        confirmed: Sequence[int] = (),
        doubt: bool = True,
    ) -> Future[list[Stored]]:
        """:meth:`put` without blocking, for an event loop."""
        put = Put(
            groups,
            revision,
            complete,
            self._require_capacity,
            self._keep,
            confirmed,
            doubt,
        )
        return self._writer.submit(put, sum(len(group.payload) for group in groups))

    def _require_capacity(self, meta: QueueMeta, new_bytes: int) -> None:
        if meta.retained_bytes + new_bytes > self.max_bytes:
            raise StoreFull(
                f"{meta.retained_bytes} of at most {self.max_bytes} bytes of groups are "
                "kept: train on them, or raise the bound"
            )

    def mark(self, confirmed: Sequence[int] = (), lost: Sequence[int] = ()) -> None:
        """Record whether the replies to groups without a key arrived."""
        self._write(lambda c: put_queries.mark(c, confirmed, lost))

    # --- batches out --------------------------------------------------------------

    def claim(self, claim: Claim, choose: Chooser) -> LeasedBatch | str:
        """Lease one batch, or return the reason why none can be formed.

        In this order: the open batch of the same ``claim_id``; the oldest open batch
        whose lease ended, or that an older generation holds, or that a rewind reopened;
        a new one. A repeated batch is identical, with ``epoch`` one higher. Deliveries to
        repeats of one ``claim_id`` do not fence each other: a late response to the first
        must not fence the trainer that uses the second. An open batch without ``size``
        sequences is dissolved (its groups return to their place in the queue). One delivered
        ``max_deliveries`` times comes after all others, with a number after theirs, until the
        trainer has acked another one since it registered; if that does not ack it either, it
        is dead, with its groups.

        For a new batch ``choose`` gets, oldest first, the oldest ``size // n_seq`` groups
        of each kind (env, n_seq); more cannot be part of one batch. Groups that it drops
        are freed in the same transaction. If it dropped groups and chose none, it is
        called again.
        """
        return self._write(lambda c: claim_queries.claim(c, claim, choose))

    def older_than(self, version: int) -> Mapping[tuple[int | None, int], int]:
        """Number of queued groups with tokens of older policy versions, by (env, n_seq)."""
        return self._read(lambda c: claim_queries.older_than(c, version))

    def claim_in_turn(
        self, claim: Claim, choose: Chooser, revision: int
    ) -> tuple[LeasedBatch | str, int | None]:
        """Claim for GET /batch: ack and commit the batch of the last reply if it was sent
        whole, else return that batch again. Also returns the number of a batch that it acked.

        Raises:
            RunChanged: ``revision`` is not that of the run document: read the run again.
        """
        return self._write(lambda c: ack_queries.claim_in_turn(c, claim, choose, revision))

    def turn(self) -> BatchTurn | None:
        """The last delivery to GET /batch."""
        return self._read(ack_queries.turn)

    def end_turn(self, batch: LeasedBatch, sent: bool) -> None:
        """Record whether a reply to GET /batch was sent whole, until a later GET acts on it."""
        self._write(lambda c: ack_queries.end_turn(c, batch, sent))

    def lookup(self, no: int, generation: int, epoch: int, freed: bool = False) -> LeasedBatch:
        """The batch as delivered; with ``freed`` also one whose payloads may be freed."""
        return self._read(lambda c: ack_queries.lookup(c, no, generation, epoch, freed))

    def read(self, gids: Sequence[int], retired: bool = False) -> list[bytes]:
        """Payloads in the order of ``gids``, byte for byte as put; with ``retired`` also
        those that an archive keeps.

        Raises:
            CorruptPayload: bytes do not match their digest, or are missing; ``gids`` of the
                error names all damaged groups.
        """
        found: dict[int, bytes] = {}
        rows: dict[int, Row] = {}
        while absent := [gid for gid in gids if gid not in found]:
            before, rows = rows, self._read(partial(self._rows, gids=absent, retired=retired))
            if rows.items() <= before.items():  # else their payloads have moved since
                raise CorruptPayload(absent)
            for (gid, row), data in zip(rows.items(), self._payloads(rows.values())):
                if digest_of(data) == row[0]:
                    found[gid] = data
        return [found[gid] for gid in gids]

    def _rows(
        self, connection: Connection, gids: Sequence[int], retired: bool = False
    ) -> dict[int, Row]:
        """Digest and stored payload by gid, without missing and unreadable groups."""
        columns, kind = self._stored
        sql = f"SELECT digest, {columns} FROM payload JOIN groups USING (gid) "
        sql += "WHERE gid = ? AND state NOT IN ('committed', 'dropped')"
        found = {}
        for gid in gids:
            try:
                rows = connection.execute(sql, (gid,)) if 0 < gid <= MAX_INT64 else []
                if not rows and retired and self._archived and 0 < gid <= MAX_INT64:
                    rows = connection.execute(self._archived, (gid,))
            except DamagedRow:
                continue
            for row in rows:
                if all(isinstance(value, kind) for value in row[1:]):
                    found[gid] = row
        return found

    def discard(self, no: int, gids: Sequence[int]) -> None:
        """Mark damaged groups of open batch ``no`` DEAD and dissolve the batch, so that its
        other groups are delivered in a new one. A batch that is not open is unchanged."""
        self._write(lambda c: ack_queries.discard(c, no, gids))

    def dead(self) -> list[DeadBatch]:
        """Batches that were set aside, and 0 for damaged groups of no batch."""
        return self._read(ack_queries.dead)

    def revive(self, no: int) -> bool:
        """Deliver a dead batch again, with the next number. False if ``no`` is none."""
        return self._write(lambda c: ack_queries.revive(c, no))

    def drop_dead(self, no: int) -> bool:
        """Free a dead batch; its groups count as dropped. False if ``no`` is none."""
        return self._write(lambda c: ack_queries.drop_dead(c, no))

    def extend(self, no: int, generation: int, epoch: int, lease_until: float) -> None:
        """Move the end of a lease."""
        self._write(lambda c: ack_queries.extend(c, no, generation, epoch, lease_until))

    def ack(
        self, no: int, generation: int, epoch: int, *, rank: int | None, commit: bool
    ) -> bool:
        """Record that the batch was trained on. True for the call that changed it.

        With a ``rank`` the batch is acked after the calls of all ``world_size`` ranks.
        ``commit`` frees the payloads at once, for trainers that never rewind.

        Raises:
            ConfigError: there is no such rank.
        """
        return self._write(lambda c: ack_queries.ack(c, no, generation, epoch, rank, commit))

    def commit(self, no: int, generation: int) -> CommitResult:
        """Free all batches up to ``no``, whose effect a durable checkpoint holds. Open ones
        count as acked if their claim had a name; others stay open."""
        return self._write(lambda c: ack_queries.commit(c, no, generation))

    def rewind(self, no: int, generation: int, rewind_id: str = "") -> RewindResult:
        """Return to the checkpoint that holds batches up to ``no``; 0 is the beginning.

        Acked and open batches after ``no`` are delivered again, first and in their order;
        their former holders are fenced. Open batches up to ``no`` count as acked. One with
        the ``rewind_id`` of an earlier one of this generation changes nothing.
        """
        return self._write(lambda c: ack_queries.rewind(c, no, generation, rewind_id))

    def after(self, no: int) -> tuple[int, int]:
        """The last batch formed, and how many after batch ``no`` are committed."""
        return self._read(lambda c: ack_queries.after(c, no))

    # --- admission ----------------------------------------------------------------

    def admit(self, asked: AdmissionGrant, budget: int, now: float) -> int:
        """Sequences granted, 0 .. ``asked.n_seq``; recorded until ``asked.until``.

        ``budget`` bounds, over the whole run, the sequences accepted (held, acked and
        committed) plus those of admissions that have not ended; it may be negative. A
        repeated ``admission_id`` returns the same grant, with the later end.
        """
        return self._write(lambda c: run_queries.admit(c, asked, budget, now))

    def release(self, admission_id: str) -> bool:
        """End an admission. False if it is unknown or has ended."""
        return self._write(lambda c: run_queries.release(c, admission_id))

    def admitted(self, now: float) -> Mapping[int | None, int]:
        """Sequences of admissions that have not ended, by env."""
        return self._read(lambda c: run_queries.admitted(c, now))

    def free_absent(self, live: Collection[int]) -> tuple[int, int]:
        """Free buffered groups and admissions of environments not in ``live``; returns the
        number of groups, which count as dropped, and of admissions."""
        return self._write(lambda c: run_queries.free_absent(c, live))

    # --- the run ------------------------------------------------------------------

    def load(self, after_env: int = -1) -> RunDocument:
        """The run document as last saved, with the environments of higher ids."""
        return self._read(lambda c: run_queries.load(c, after_env))

    def save(
        self,
        body: bytes,
        revision: int,
        *,
        fence: bool = False,
        fork: int | None = None,
        envs: Mapping[int, bytes | None] = {},
    ) -> RunDocument:
        """Save the run document and ``envs`` (None: delete it) if ``revision`` is the latest.

        ``fence`` begins the next trainer generation in the same transaction. With ``fork``,
        the first version of its trainer, versions of queued groups after it are no longer
        those of the current weights and count as older (``wire.lineage``).

        Raises:
            RunChanged: a later revision exists.
        """
        return self._write(lambda c: run_queries.save(c, body, revision, fence, fork, envs))

    def reset(self) -> RunDocument:
        """Delete groups, batches, admissions, fair shares and run, and fence every trainer.
        Group ids, batch numbers, generations and revisions continue."""
        return self._write(run_queries.reset)

    def stats(self) -> StoreStats:
        """Counts by kind."""
        return self._read(stats)

    # --- the index of rollouts ------------------------------------------------------

    def begin_run(self) -> None:
        """Begin another run in the archive, as :meth:`reset` does; nothing else changes."""
        self._write(run_queries.begin)

    def begun(self) -> tuple[int, int]:
        """The last group and batch before the run that the archive shows; (0, 0): the first."""
        return self._read(run_queries.begun)

    def ledger(self, after: int) -> list[BatchRow]:
        """Batches after ``after``, and all that are not committed."""
        return self._read(lambda c: ledger.changed(c, after))

    def members(self, no: int) -> tuple[BatchMember, ...]:
        """The groups of a batch, as long as the ledger has them."""
        return self._read(lambda c: claim_queries.members_of(c, no))

    def arrivals(self, gids: Sequence[int]) -> dict[int, Arrival]:
        """State and arrival of the groups that the ledger has."""
        return self._read(lambda c: ledger.arrivals(c, gids))

    def kept(self, after: int, limit: int) -> list[int]:
        """Ids after ``after`` of the next groups whose payloads are kept, ascending."""
        return self._read(lambda c: ledger.kept(c, after, limit, self._archived is not None))

    def pin(self, gids: Sequence[int], kept: bool = True) -> None:
        """Keep these groups beyond the archive's bound; ConfigError: there is no archive."""
        raise ConfigError("no archive keeps groups: --archive off, or --store memory")

    def pinned(self, gids: Sequence[int]) -> int:
        """How many of these groups are pinned."""
        if self._archived is None:
            return 0
        sql = "SELECT gid FROM pinned WHERE gid IN {}"
        return len(self._read(lambda c: for_all(c, sql, gids)))

"""Store: the guarantees of the queue, over the reads and writes of a database.

    put: BUFFERED --complete--> PENDING --claim--> LEASED --ack--> ACKED --commit--> COMMITTED
                                 |  ^                |  ^            |
                          drop <-'  '--- dissolve ---'  '-- rewind --'      (DROPPED, DEAD)

An operation is a dataclass (``Ack``, ``Commit``, ``LoadRun`` ...) or function that takes the
connection: ``store.do`` runs operations that write, ``store.ask`` operations that only read.
Each is atomic; calls are blocking and thread-safe, and an effect is durable when they return.
The unit of delivery is an immutable numbered batch. Batches without an ack are delivered
again, whole and identical. A trainer that saves the number of its last batch in its
checkpoint, and rewinds to it, trains on each group exactly once.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from atroposlib.api.common.records import (
    BufferPolicy,
    NewGroup,
    Stored,
    StoreStats,
)
from atroposlib.api.store.sql import ledger
from atroposlib.api.store.sql.payloads import StoredPayloads
from atroposlib.api.store.sql.put import Put
from atroposlib.api.store.sql.schema import (
    Connection,
    QueueMeta,
    for_all,
    stats,
)
from atroposlib.api.store.sql.writer import Read, Work, Writer, written_result
from atroposlib.errors import ConfigError, StoreFull

T = TypeVar("T")
DEFAULT_MAX_BYTES = 16 * 2**30


class Store(StoredPayloads, ABC):
    """A durable queue of groups, the batches made of these groups, and the state of the run.

    Args:
        writer: runs operations under an exclusive write lock; durable when it replies.
        read: runs an operation on a single snapshot of the tables, without waiting for a writer.
        max_bytes: bound on ``StoreStats.retained_bytes``, the payloads of all groups held.
    """

    shared = False  # whether several processes use the same data
    archive: Path | None = None  # file of the index of rollouts; None: in memory

    def __init__(self, writer: Writer, read: Read, max_bytes: int) -> None:
        super().__init__(read)
        self._writer = writer
        self.max_bytes = max_bytes

    @abstractmethod
    def close(self) -> None:
        """Finish pending operations and close files and connections. Idempotent."""

    def do(self, operation: Work[T]) -> T:
        """Run an operation that writes; returns its result once it is durable.

        Raises:
            StoreError: the store is closed, fails, or does not answer in time.
        """
        return self._writer.do(operation)

    def now(self) -> float:
        """The wall clock (s) of leases, which outlive the process; the same for all replicas."""
        return time.time()

    def _keep(self, connection: Connection, gid: int, body: bytes) -> None:
        """Store a payload inside a put."""
        connection.execute("INSERT INTO payload VALUES (?, ?)", (gid, body))

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

        A group without a key is absorbed if it equals a group whose reply is marked as lost
        (``MarkReplies``), once for each. ``confirmed`` are groups whose senders got their replies
        meanwhile. Without ``doubt`` an unknown reply counts as lost.

        Raises:
            ReplyInDoubt: nothing is known yet of the reply to an equal group.
            RunChanged: ``revision`` is not that of the run document: read the run again.
            KeyConflict: a key is known with different content.
            StoreFull: the put would exceed the bound on retained bytes or use the reserve
                of free space; duplicates are still absorbed.
        """
        return written_result(self.submit_put(groups, revision, complete, confirmed, doubt))

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

    def stats(self) -> StoreStats:
        """Counts by kind."""
        return self.ask(stats)

    # --- the index of rollouts ------------------------------------------------------

    def kept_gids(self, after: int, limit: int) -> list[int]:
        """Ids after ``after`` of the next groups whose payloads are kept, ascending."""
        return self.ask(
            lambda c: ledger.kept_gids(c, after, limit, self._archived is not None)
        )

    def pin(self, gids: Sequence[int], kept: bool = True) -> None:
        """Keep these groups beyond the archive's bound; ConfigError: there is no archive."""
        raise ConfigError("no archive keeps groups: --archive off, or --store memory")

    def count_pinned(self, gids: Sequence[int]) -> int:
        """How many of these groups are pinned."""
        if self._archived is None:
            return 0
        sql = "SELECT gid FROM pinned WHERE gid IN {}"
        return len(self.ask(lambda c: for_all(c, sql, gids)))

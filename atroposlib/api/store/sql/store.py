"""The verbs of the seam, over a database that can write and look."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from atroposlib.api.common.records import (
    Admission,
    Batch,
    Chooser,
    Claim,
    Completer,
    Media,
    NewGroup,
    Payload,
    Rewound,
    RunDocument,
    Stored,
    StoreStats,
    Unanswered,
)
from atroposlib.api.common.store_protocol import DEFAULT_MAX_BYTES, digest_of
from atroposlib.api.store.sql import batches
from atroposlib.api.store.sql import claim as claim_queries
from atroposlib.api.store.sql import put as put_queries
from atroposlib.api.store.sql import run
from atroposlib.api.store.sql.put import Arrival
from atroposlib.api.store.sql.schema import Head
from atroposlib.api.store.sql.writer import Work
from atroposlib.errors import CorruptPayload, StoreFull

T = TypeVar("T")
_GONE = (b"", Media.SAFETENSORS_ZSTD, b"")


class SqlStore(ABC):
    """See :class:`atroposlib.api.common.store_protocol.Store`.

    A database gives it two ways in: ``_write`` for an operation that nobody may write
    beside, durable when it returns; ``_look`` for one that only reads, from one state of
    the tables, and need not wait for a writer.
    """

    shared = False

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.max_bytes = max_bytes

    @abstractmethod
    def _write(self, work: Work[T], n_bytes: int = 0) -> T: ...

    @abstractmethod
    def _look(self, work: Work[T]) -> T: ...

    @abstractmethod
    def close(self) -> None: ...

    def _body(self, group: NewGroup) -> bytes:
        """The payload as it shall lie in the table; called outside of any transaction."""
        return group.payload

    def _payload(self, media: Media, body: bytes) -> bytes:
        """The payload of a body; the inverse of :meth:`_body`."""
        return body

    def _spare_bytes(self) -> int | None:
        """What the place of the files can still take, or None if nobody knows.

        Called inside the transaction of a put.
        """
        return None

    # --- groups in ----------------------------------------------------------------

    def put(
        self, groups: Sequence[NewGroup], revision: int, complete: Completer
    ) -> list[Stored]:
        arrivals = [
            Arrival(group, group.digest or digest_of(group.payload), self._body(group))
            for group in groups
        ]
        return self._write(
            lambda c: put_queries.put(c, arrivals, revision, complete, self._require_room),
            n_bytes=sum(len(arrival.body) for arrival in arrivals),
        )

    def _require_room(self, head: Head, new_bytes: int) -> None:
        if head.retained_bytes + new_bytes > self.max_bytes:
            raise StoreFull(
                f"{head.retained_bytes} of at most {self.max_bytes} bytes of groups are "
                "kept: train on them, or raise the bound"
            )
        spare = self._spare_bytes()
        if spare is not None and spare < 2 * new_bytes:  # the log and the file both take it
            raise StoreFull("the disk of the store is full up to its reserve: free some space")

    def unanswered(self, since: float) -> list[Unanswered]:
        return self._look(lambda c: run.unanswered(c, since))

    # --- batches out --------------------------------------------------------------

    def claim(self, claim: Claim, choose: Chooser) -> Batch | str:
        return self._write(lambda c: claim_queries.claim(c, claim, choose))

    def lookup(self, no: int, generation: int, epoch: int) -> Batch:
        return self._look(lambda c: batches.lookup(c, no, generation, epoch))

    def read(self, gids: Sequence[int]) -> list[Payload]:
        rows = self._look(lambda c: run.payloads(c, gids))
        found: list[Payload] = []
        damaged: list[int] = []
        for gid in gids:  # checked here, where no transaction waits for it
            digest, media, body = rows.get(gid, _GONE)
            data = self._payload(media, body)
            if gid in rows and digest_of(data) == digest:
                found.append(Payload(data, media))
            else:
                damaged.append(gid)
        if damaged:
            raise CorruptPayload(damaged)
        return found

    def discard(self, no: int, gids: Sequence[int]) -> None:
        self._write(lambda c: batches.discard(c, no, gids))

    def extend(self, no: int, generation: int, epoch: int, lease_until: float) -> None:
        self._write(lambda c: batches.extend(c, no, generation, epoch, lease_until))

    def ack(
        self, no: int, generation: int, epoch: int, *, rank: int | None, commit: bool
    ) -> bool:
        return self._write(lambda c: batches.ack(c, no, generation, epoch, rank, commit))

    def commit(self, no: int, generation: int) -> int:
        return self._write(lambda c: batches.commit(c, no, generation))

    def rewind(self, no: int, generation: int) -> Rewound:
        return self._write(lambda c: batches.rewind(c, no, generation))

    # --- admission ----------------------------------------------------------------

    def admit(self, asked: Admission, budget: int, now: float) -> int:
        return self._write(lambda c: run.admit(c, asked, budget, now))

    def release(self, lease_id: str) -> bool:
        return self._write(lambda c: run.release(c, lease_id))

    def admitted(self, now: float) -> int:
        return self._look(lambda c: run.admitted(c, now))

    # --- the run ------------------------------------------------------------------

    def load(self) -> RunDocument:
        return self._look(run.load)

    def save(self, body: bytes, revision: int, *, fence: bool = False) -> RunDocument:
        return self._write(lambda c: run.save(c, body, revision, fence))

    def reset(self) -> RunDocument:
        return self._write(run.reset)

    def stats(self) -> StoreStats:
        return self._look(run.stats)

"""Payload log: each payload is written once, verbatim, to a segment file of the directory.

    append -> write -> fsync of the segment -> COMMIT (its fsync) -> reply to the caller
                                                 '-> deletion of freed segments

A row names the bytes of a payload: segment, start, length; its digest is checked at every
read. Bytes that no committed row names do not exist: they are cut off or deleted at the
next opening. ``docs/decisions/0015-payload-log.md`` goes through the crash points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from atroposlib.api.store.sql.schema import SQLITE, Connection, DamagedRow
from atroposlib.api.store.sqlite.retention import WORTH_MOVING, Segment, SegmentPlan, plan
from atroposlib.api.store.sqlite.segment_files import SegmentFiles

SEGMENT_BYTES = 64 * 2**20
MOVED_GROUPS = 256  # per commit, at most

# The tables of a data directory: those of SQLite, with the place of a payload for its bytes.
# Triggers count the live bytes of each segment within the transaction that changes them.
_COUNT = "UPDATE segment SET live_bytes = live_bytes"
LOGGED = replace(
    SQLITE,
    payload="segment INTEGER NOT NULL, start INTEGER NOT NULL, n_bytes INTEGER NOT NULL",
    after_tables=(
        "CREATE INDEX payload_segment ON payload (segment)",
        "CREATE TABLE segment (no INTEGER PRIMARY KEY, n_bytes INTEGER NOT NULL, "
        "live_bytes INTEGER NOT NULL)",
        "INSERT INTO segment VALUES (1, 0, 0)",
        "CREATE TRIGGER payload_kept AFTER INSERT ON payload BEGIN "
        f"{_COUNT} + new.n_bytes WHERE no = new.segment; END",
        "CREATE TRIGGER payload_retired AFTER DELETE ON payload BEGIN "
        f"{_COUNT} - old.n_bytes WHERE no = old.segment; END",
    ),
)
# Damaged columns may have any type.
_SEGMENTS = (
    "SELECT no, CAST(n_bytes AS INTEGER), CAST(live_bytes AS INTEGER) FROM segment ORDER BY no"
)
_NAMED = (
    "SELECT CAST(segment AS INTEGER), CAST(MAX(start + n_bytes) AS INTEGER) "
    "FROM payload GROUP BY segment"
)
# Rows decide, not the count: no damage of the count may free a payload.
_FREE = (
    "DELETE FROM segment WHERE no = ? AND NOT EXISTS "
    "(SELECT 1 FROM payload WHERE segment = no) RETURNING no"
)


class PayloadLog:
    """The segments of one data directory. All methods but ``read`` belong to the writer.

    Args:
        spare_bytes: free space of the disk above its reserve.
    """

    def __init__(
        self, files: SegmentFiles, spare_bytes: Callable[[], int], segment_bytes: int
    ) -> None:
        self._files, self._spare_bytes = files, spare_bytes
        self._segment_bytes = segment_bytes
        self._no = self._end = 0  # of the active segment
        self._pending: list[bytes] = []  # appended in this transaction
        self.pending_bytes = 0
        self._plan = SegmentPlan()
        self._unreadable: set[int] = set()  # segments with a payload that cannot be moved
        self.disk_bytes = 0  # of all segments

    def recover(self, connection: Connection) -> None:
        """Remove what no committed row names: torn tails, and files that were to be freed."""
        segments = connection.execute(_SEGMENTS)
        ends = {no: n_bytes for no, n_bytes, _ in segments}
        for no, named in connection.execute(_NAMED):  # a damaged count must not cut a payload
            ends[no] = max(ends.get(no, 0), named or 0)
        for no in self._files.numbers():
            if ends.get(no, 0) > 0:
                self._files.cut(no, ends[no])
            else:
                self._files.delete(no)
        if not segments:
            raise DamagedRow("SQLite: the table of segments is empty")
        self._no = segments[-1][0]
        self._end = ends[self._no]
        self.disk_bytes = sum(n_bytes for _, n_bytes, _ in segments)

    def append(self, connection: Connection, gid: int, body: bytes) -> None:
        """Keep the payload of a group in this transaction."""
        connection.execute(
            "INSERT INTO payload VALUES (?, ?, ?, ?)",
            (gid, self._no, self._end + self.pending_bytes, len(body)),
        )
        self._pending.append(body)
        self.pending_bytes += len(body)

    def read(self, no: int, places: Sequence[tuple[int, int]]) -> list[bytes]:
        """Payloads at (start, length) of a segment, unchecked; empty if they cannot be read."""
        try:
            return self._files.read(no, places)
        except (OSError, OverflowError):
            return [b""] * len(places)

    # --- a transaction ------------------------------------------------------------

    def before_commit(self, connection: Connection) -> None:
        """Make all bytes durable that the rows of this transaction name."""
        segments = self._segments(connection)
        planned = plan(
            segments, self._segment_bytes, self._spare_bytes(), fixed=self._unreadable
        )
        if planned.move is not None:
            self._move(connection, planned.move)
        if self._pending:
            self._write()
            connection.execute(
                "UPDATE segment SET n_bytes = ? WHERE no = ?", (self._end, self._no)
            )
        if planned.seal:
            connection.execute("INSERT INTO segment VALUES (?, 0, 0)", (self._no + 1,))
        freed = [row[0] for no in planned.free for row in connection.execute(_FREE, (no,))]
        self._plan = replace(planned, free=tuple(freed))
        self.disk_bytes = self._end + sum(
            one.n_bytes for one in segments[:-1] if one.no not in freed
        )

    def after_commit(self) -> None:
        """Delete the freed files: no durable row names a byte of them now."""
        done, self._plan = self._plan, SegmentPlan()
        for no in done.free:
            with suppress(OSError):  # the next opening deletes it
                self._files.delete(no)
        if done.seal:
            self._no, self._end = self._no + 1, 0

    def rolled_back(self) -> None:
        """Forget the transaction. Bytes that it wrote are not used again.

        A COMMIT that failed may still reach the disk: if its bytes were overwritten, its
        rows would name those of another group after a crash.
        """
        self._pending, self.pending_bytes, self._plan = [], 0, SegmentPlan()

    def close(self) -> None:
        self._files.close()

    def _segments(self, connection: Connection) -> list[Segment]:
        segments = [Segment(*row) for row in connection.execute(_SEGMENTS)]
        segments[-1] = replace(segments[-1], n_bytes=self._end + self.pending_bytes)
        return segments

    def _write(self) -> None:
        self._files.write(self._no, self._end, self._pending)
        self._end += self.pending_bytes
        self._pending, self.pending_bytes = [], 0
        self._files.sync(self._no)

    def _move(self, connection: Connection, no: int) -> None:
        """Append live payloads of sealed segment ``no`` again, verbatim.

        Four times the bytes of this commit, so that the log shrinks faster than it grows.
        But not much in one commit, which holds it in memory and lets posts wait.
        """
        budget = max(self._segment_bytes // 32, (WORTH_MOVING - 1) * self.pending_bytes)
        budget = min(budget, self._segment_bytes // 4)
        rows = connection.execute(
            "SELECT gid, start, n_bytes FROM payload WHERE segment = ? LIMIT ?",
            (no, MOVED_GROUPS),
        )
        for gid, start, n_bytes in rows:
            [body] = self.read(no, [(start, n_bytes)])
            if len(body) != n_bytes:
                self._unreadable.add(no)
                return
            connection.execute("DELETE FROM payload WHERE gid = ?", (gid,))
            self.append(connection, gid, body)
            budget -= n_bytes
            if budget <= 0:
                return

"""Payload log: each payload is written once, verbatim, to a segment file of the directory.

    append -> write -> fsync of the segment -> COMMIT (its fsync) -> reply to the caller
                                                 '-> deletion of freed segments

A row names the bytes of a payload: segment, start, length; its digest is checked at every
read. Bytes that no committed row names do not exist: they are cut off or deleted at the
next opening. ``docs/decisions/0015-payload-log.md`` goes through the crash points.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from atroposlib.api.store.sql.schema import SQLITE, Connection, DamagedRow, for_all
from atroposlib.api.store.sqlite.retention import WORTH_MOVING, Segment, SegmentPlan, plan
from atroposlib.api.store.sqlite.segment_files import SegmentFiles

logger = logging.getLogger(__name__)

SEGMENT_BYTES = 64 * 2**20
MOVED_GROUPS = 256  # per commit, at most

# The tables of a data directory: the tables of SQLite, with the place of a payload for its bytes.
# Triggers count the live bytes of each segment within the transaction that changes a payload,
# and keep the place of each retired payload in ``archived``, if ``archive.bound`` is positive.
_COUNT = "UPDATE segment SET live_bytes = live_bytes"
_PLACE = "segment INTEGER NOT NULL, start INTEGER NOT NULL, n_bytes INTEGER NOT NULL"
RETIRE = (
    "CREATE TRIGGER payload_retired AFTER DELETE ON payload BEGIN "
    f"{_COUNT} - old.n_bytes WHERE no = old.segment; "
    "INSERT OR REPLACE INTO archived SELECT gid, old.segment, old.start, old.n_bytes, "
    "digest FROM groups, archive WHERE gid = old.gid AND bound > 0; END"
)
LOGGED = replace(
    SQLITE,
    payload=_PLACE,
    after_tables=(
        "CREATE INDEX payload_segment ON payload (segment)",
        "CREATE TABLE segment (no INTEGER PRIMARY KEY, n_bytes INTEGER NOT NULL, "
        "live_bytes INTEGER NOT NULL, pinned INTEGER NOT NULL DEFAULT 0)",
        "INSERT INTO segment VALUES (1, 0, 0, 0)",
        f"CREATE TABLE archived (gid INTEGER PRIMARY KEY, {_PLACE}, digest BLOB NOT NULL)",
        "CREATE INDEX archived_segment ON archived (segment)",
        "CREATE TABLE archive (bound INTEGER NOT NULL)",
        "INSERT INTO archive VALUES (0)",
        "CREATE TRIGGER payload_kept AFTER INSERT ON payload BEGIN "
        f"{_COUNT} + new.n_bytes WHERE no = new.segment; END",
        RETIRE,
        "CREATE TRIGGER payload_moved AFTER UPDATE ON payload BEGIN "
        f"{_COUNT} - old.n_bytes WHERE no = old.segment; "
        f"{_COUNT} + new.n_bytes WHERE no = new.segment; END",
    ),
)
# Damaged columns may have any type.
_SEGMENTS = (
    "SELECT no, CAST(n_bytes AS INTEGER), CAST(live_bytes AS INTEGER), pinned FROM segment "
    "ORDER BY no"
)
_NAMED = (
    "SELECT CAST(segment AS INTEGER), CAST(MAX(start + n_bytes) AS INTEGER) "
    "FROM (SELECT segment, start, n_bytes FROM payload UNION ALL "
    "SELECT segment, start, n_bytes FROM archived) GROUP BY segment"
)
_PLACES = "(SELECT gid, segment FROM payload UNION ALL SELECT gid, segment FROM archived)"
_PIN = f"INSERT OR IGNORE INTO pinned SELECT gid FROM {_PLACES} WHERE gid IN {{}}"
_PIN_SEGMENTS = (
    f"UPDATE segment SET pinned = EXISTS (SELECT 1 FROM {_PLACES} JOIN pinned USING (gid) "
    "WHERE segment = no) WHERE no IN "
)
_CUT_OFF = "SELECT COUNT(*) FROM payload WHERE segment = ? AND start + n_bytes > ?"
# Rows decide, not the count: no damage of the count may free a payload.
_FREE = (
    "DELETE FROM segment WHERE no = ? AND NOT EXISTS "
    "(SELECT 1 FROM payload WHERE segment = no) RETURNING no"
)


def segment_ends(connection: Connection) -> dict[int, int]:
    """Bytes of each segment that rows name, by number."""
    ends = {no: n_bytes for no, n_bytes, _, _ in connection.execute(_SEGMENTS)}
    for no, named in connection.execute(_NAMED):  # a damaged count must not cut a payload
        ends[no] = max(ends.get(no, 0), named or 0)
    return ends


class PayloadLog:
    """The segments of a data directory. All methods but ``read`` belong to the writer.

    Args:
        spare_bytes: free space of the disk above its reserve.
        archive_bytes: retired bytes that are kept; 0: none.
    """

    def __init__(
        self,
        files: SegmentFiles,
        spare_bytes: Callable[[], int],
        segment_bytes: int,
        archive_bytes: int = 0,
    ) -> None:
        self._files, self._spare_bytes = files, spare_bytes
        self._segment_bytes, self._archive_bytes = segment_bytes, archive_bytes
        self._no = self._end = 0  # place in the active segment
        self._pending: list[bytes] = []  # appended in this transaction
        self.pending_bytes = 0
        self._plan = SegmentPlan()
        self._unreadable: set[int] = set()  # segments with a payload that cannot be moved
        self.disk_bytes = 0  # size of all segments

    def recover(self, connection: Connection) -> None:
        """Remove bytes that no committed row names: torn tails, and files that were to be freed."""
        segments = connection.execute(_SEGMENTS)
        ends = segment_ends(connection)
        for no in self._files.numbers():
            if ends.get(no, 0) > 0:
                self._files.cut(no, ends[no])
            else:
                self._files.delete(no)
        if not segments:
            raise DamagedRow("SQLite: the table of segments is empty")
        self._report_missing(connection, ends)
        self._no = segments[-1][0]
        self._end = ends[self._no]
        self.disk_bytes = sum(n_bytes for _, n_bytes, _, _ in segments)
        connection.execute("UPDATE archive SET bound = ?", (self._archive_bytes,))
        connection.execute("CREATE TABLE IF NOT EXISTS pinned (gid INTEGER PRIMARY KEY)")

    def _report_missing(self, connection: Connection, ends: Mapping[int, int]) -> None:
        """Log how many queued groups lost their bytes; each becomes dead when it is claimed."""
        for no, end in ends.items():
            size = self._files.size(no)
            if size < end:
                [(groups,)] = connection.execute(_CUT_OFF, (no, size))
                if groups:
                    logger.error(
                        f"{self._files.path(no)} has {size} of {end} bytes: {groups} queued groups "
                        "are damaged. They will be set aside as dead, never delivered; put the file "
                        "back before that if there is a copy"
                    )

    def pin(self, connection: Connection, gids: Sequence[int], kept: bool) -> None:
        """Pin the groups if ``kept``, else unpin; a segment goes by the pins in it."""
        for_all(connection, _PIN if kept else "DELETE FROM pinned WHERE gid IN {}", gids)
        for table in ("archived", "payload"):
            segments = f"(SELECT segment FROM {table} WHERE gid IN {{}})"
            for_all(connection, _PIN_SEGMENTS + segments, gids)

    def append(self, connection: Connection, gid: int, body: bytes) -> None:
        """Keep the payload of a group in this transaction."""
        place = (self._no, self._end + self.pending_bytes, len(body))
        connection.execute("INSERT INTO payload VALUES (?, ?, ?, ?)", (gid, *place))
        self._append(body)

    def replace(self, connection: Connection, table: str, gid: int, body: bytes) -> None:
        """Keep new bytes for a payload of ``payload`` or ``archived`` in this transaction."""
        place = (self._no, self._end + self.pending_bytes, len(body))
        sql = f"UPDATE {table} SET segment = ?, start = ?, n_bytes = ? WHERE gid = ?"
        connection.execute(sql, (*place, gid))
        self._append(body)

    def pin_again(self, connection: Connection) -> None:
        """Pin the segments that hold pinned groups, and only these."""
        connection.execute(_PIN_SEGMENTS + "(SELECT no FROM segment)")

    def _append(self, body: bytes) -> None:
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
            segments,
            self._segment_bytes,
            self._spare_bytes(),
            fixed=self._unreadable,
            archive_bytes=self._archive_bytes,
        )
        if planned.move is not None:
            self._move(connection, planned.move)
        if self._pending:
            self._write()
            connection.execute(
                "UPDATE segment SET n_bytes = ? WHERE no = ?", (self._end, self._no)
            )
        if planned.seal:
            connection.execute("INSERT INTO segment VALUES (?, 0, 0, 0)", (self._no + 1,))
        freed = [row[0] for no in planned.free for row in connection.execute(_FREE, (no,))]
        for no in freed:
            connection.execute("DELETE FROM archived WHERE segment = ?", (no,))
        self._plan = replace(planned, free=tuple(freed))
        self.disk_bytes = self._end + sum(
            segment.n_bytes for segment in segments[:-1] if segment.no not in freed
        )

    def after_commit(self) -> None:
        """Delete the freed files: no durable row names their bytes now."""
        done, self._plan = self._plan, SegmentPlan()
        for no in done.free:
            with suppress(OSError):  # the next opening deletes it
                self._files.delete(no)
        if done.seal:
            self._no, self._end = self._no + 1, 0

    def rolled_back(self) -> None:
        """Forget the transaction. Bytes that it wrote are not used again.

        A COMMIT that failed may still reach the disk: if its bytes were overwritten, its
        rows would name bytes of another group after a crash.
        """
        self._pending, self.pending_bytes, self._plan = [], 0, SegmentPlan()

    def close(self) -> None:
        self._files.close()

    def _segments(self, connection: Connection) -> list[Segment]:
        rows = connection.execute(_SEGMENTS)
        segments = [Segment(no, size, live, bool(pinned)) for no, size, live, pinned in rows]
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
        But not much in a commit, which holds it in memory and lets posts wait.
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
            connection.execute(
                "UPDATE payload SET segment = ?, start = ? WHERE gid = ?",
                (self._no, self._end + self.pending_bytes, gid),
            )
            self._append(body)
            budget -= n_bytes
            if budget <= 0:
                return

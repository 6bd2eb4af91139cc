"""Bugs a payload log could have; the power cuts must detect each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from atroposlib.api.store.sqlite import opening, payload_log
from tests.torture.disk.lossy_disk import LossySegments
from tests.torture.queue.mutation import Judge, noticed_by, wrap


@noticed_by(Judge.POWER)
def rows_are_committed_before_their_payloads_are_synced() -> None:
    def unsynced(original: Any, self: Any) -> None:
        sync, self._files.sync = self._files.sync, lambda no: None
        try:
            original(self)
        finally:
            self._files.sync = sync

    def late(original: Any, self: Any) -> None:
        if self._end:
            self._files.sync(self._no)
        original(self)

    wrap(payload_log.PayloadLog, "_write", unsynced)
    wrap(payload_log.PayloadLog, "after_commit", late)


@noticed_by(Judge.POWER)
def torn_tails_are_not_cut() -> None:
    wrap(LossySegments, "cut", lambda original, *args: None)


@noticed_by(Judge.POWER)
def segments_are_deleted_before_the_commit() -> None:
    def around(original: Any, self: Any, connection: Any) -> None:
        original(self, connection)
        for no in self._plan.free:
            self._files.delete(no)

    wrap(payload_log.PayloadLog, "before_commit", around)


@noticed_by(Judge.POWER)
def nearly_dead_segments_are_freed() -> None:
    payload_log._FREE = "DELETE FROM segment WHERE no = ? RETURNING no"
    wrap(
        payload_log,
        "plan",
        lambda original, segments, *args, **more: original(
            [
                replace(one, live_bytes=one.live_bytes if one.live_bytes > 20 else 0)
                for one in segments
            ],
            *args,
            **more,
        ),
    )


@noticed_by(Judge.POWER)
def names_of_new_segments_are_not_synced() -> None:
    wrap(LossySegments, "sync_folder", lambda original, self: None)


@noticed_by(Judge.POWER)
def retired_bytes_of_a_moved_payload_are_not_counted() -> None:
    payload_log.LOGGED = replace(
        payload_log.LOGGED, after_tables=payload_log.LOGGED.after_tables[:-1]
    )
    opening.LOGGED = payload_log.LOGGED


@noticed_by(Judge.POWER)
def a_moved_payload_is_not_written_again() -> None:
    def around(original: Any, self: Any, connection: Any, no: int) -> None:
        pending = len(self._pending)
        original(self, connection, no)
        self._pending[pending:] = [bytes(len(body)) for body in self._pending[pending:]]

    wrap(payload_log.PayloadLog, "_move", around)

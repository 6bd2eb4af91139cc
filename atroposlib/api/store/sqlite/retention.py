"""Retention rule of the payload log: which segments are freed, moved or sealed. Pure.

    active --seal--> sealed --(its last payload retires)--> free
                       '--move: its few live payloads are appended again--^

A payload retires when its row is deleted. Rollouts retire nearly in the order of their
posts, so whole segments empty, and nothing is moved. Moves only bound the space that payloads which
stay can hold back: buffered groups, dead batches, a slow environment.

With an archive, sealed segments are freed only beyond its bound, the oldest first. The archive
yields to the queue: below the reserve of the disk nothing is kept for it but pinned segments.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

# A segment is moved if at least a fifth of it is retired: 4 bytes written per byte freed.
WORTH_MOVING = 5


@dataclass(frozen=True)
class Segment:
    """File of the log."""

    no: int
    n_bytes: int  # on disk
    live_bytes: int  # bytes of the payloads that rows name
    pinned: bool = False  # kept beyond the bound of the archive

    @property
    def retired_bytes(self) -> int:
        return self.n_bytes - self.live_bytes

    @property
    def worth_moving(self) -> bool:
        return self.retired_bytes * WORTH_MOVING >= self.n_bytes > 0


@dataclass(frozen=True)
class SegmentPlan:
    """Changes of the segments by a commit."""

    free: tuple[int, ...] = ()  # sealed segments without a live payload
    move: int | None = None  # the sealed segment whose live payloads are appended again
    seal: bool = False  # the next commit begins a new segment


def tolerated_bytes(live_bytes: int, segment_bytes: int) -> int:
    """Retired bytes in sealed segments that nothing is moved for."""
    return max(2 * segment_bytes, live_bytes // (WORTH_MOVING - 1))


def plan(
    segments: Sequence[Segment],
    segment_bytes: int,
    spare_bytes: int,
    fixed: Collection[int] = (),
    archive_bytes: int = 0,
) -> SegmentPlan:
    """The plan of a commit.

    Args:
        segments: in order of ``no``; the last is active, the rest are sealed.
        segment_bytes: size at which a segment is sealed.
        spare_bytes: free space of the disk above its reserve. With less than a segment,
            retired bytes are not tolerated, and the active segment is sealed early.
        fixed: segments that cannot be moved, since they cannot be read.
        archive_bytes: retired bytes that are kept in sealed segments.
    """
    *sealed, active = segments
    tight = spare_bytes < segment_bytes
    held = [segment for segment in sealed if segment.live_bytes > 0]
    live = sum(segment.live_bytes for segment in segments)
    retired = sum(segment.retired_bytes for segment in held)
    archived = sum(segment.retired_bytes for segment in sealed)
    free, spare = [], spare_bytes
    for segment in sealed:
        over = archive_bytes <= 0 or archived > archive_bytes or spare < segment_bytes
        if segment.live_bytes <= 0 and over and not segment.pinned:
            free.append(segment.no)
            archived -= segment.retired_bytes
            spare += segment.n_bytes
    room = max(spare_bytes, segment_bytes // 16)  # a move writes before it frees
    movable = [
        segment
        for segment in held
        if segment.worth_moving
        and segment.live_bytes <= room
        and segment.no not in fixed
        and not segment.pinned
    ]
    move = None
    tolerated = 0 if tight else archive_bytes + tolerated_bytes(live, segment_bytes)
    if movable and retired > tolerated:
        move = min(movable, key=lambda segment: segment.live_bytes / segment.n_bytes).no
    early = tight and active.worth_moving and active.n_bytes >= segment_bytes // 64
    return SegmentPlan(
        free=tuple(free),
        move=move,
        seal=active.n_bytes >= segment_bytes or early,
    )

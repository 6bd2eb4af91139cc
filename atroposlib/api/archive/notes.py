"""Notes of the trainer as records of the index. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from atroposlib.api.archive.records import NotesFact
from atroposlib.api.common.records import BatchMember
from atroposlib.errors import InvalidGroup
from atroposlib.wire.binary import split_frames
from atroposlib.wire.notes import CLIPPED, GroupNotes, unpack_notes


def notes_in(body: bytes, no: int, members: Sequence[BatchMember]) -> list[NotesFact]:
    """The notes in frames, about groups of batch ``no``.

    Raises:
        MalformedBody, InvalidGroup: as of :func:`unpack_notes`, or a group that it has not.
    """
    found: list[NotesFact] = []
    for frame in split_frames(body, len(members)):
        notes = unpack_notes(frame)
        if notes.member >= len(members):
            raise InvalidGroup("member", "", f"the members are 0 .. {len(members) - 1}")
        member = members[notes.member]
        if len(notes.counts) != member.n_seq:
            raise InvalidGroup("counts", "", f"group {notes.member} has {member.n_seq} rows")
        found += _rows(notes, member.gid, no)
    return found


def _rows(notes: GroupNotes, gid: int, no: int) -> Iterator[NotesFact]:
    for g, reason in enumerate(notes.reasons):
        advantages, logprobs, flags = notes.of_row(g)
        if reason is None and not len(flags):
            continue
        known = advantages[~np.isnan(advantages)]
        yield NotesFact(
            gid=gid,
            row=g,
            batch_no=no,
            advantages=advantages.tobytes() or None,
            logprobs=logprobs.tobytes() or None,
            flags=flags.tobytes() or None,
            advantage=float(known.mean()) if len(known) else None,
            diff_mean=_known(notes.diff_mean[g]),
            diff_max=_known(notes.diff_max[g]),
            clipped_share=float((flags & CLIPPED != 0).mean()) if len(known) else None,
            why=reason,
        )


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)

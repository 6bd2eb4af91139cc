"""Notes of the trainer as records of the index: values by row, unknown ones as None."""

from __future__ import annotations

import numpy as np

from atroposlib.api.archive.records import notes_in
from atroposlib.api.common.records import BatchMember
from atroposlib.wire.binary import concatenate_frames
from atroposlib.wire.notes import CLIPPED, GroupNotes, pack_notes
from tests.api.archive.rollouts import group, index_of, row


def test_each_row_with_notes_or_a_reason_is_stored():
    notes = GroupNotes.empty(1, [2, 1, 0, 0])
    notes.advantages[:] = [0.5, np.nan, np.nan]
    notes.logprobs[0] = -1.5
    notes.flags[0], notes.diff_max[0] = CLIPPED, 0.25
    notes.reasons[1:3] = ["equal_rewards", "judge_error"]
    members = [BatchMember(gid, None, n_seq=4, n_bytes=1) for gid in (7, 9)]
    [fact] = notes_in(concatenate_frames([pack_notes(notes)]), 3, members)
    assert (fact.gid, fact.batch_no, fact.rows) == (9, 3, [0, 1, 2])
    index = index_of(group(9, [row()] * 4), fact)
    names = "advantage, diff_mean, diff_max, clipped_share, why"
    assert index.read(f"SELECT {names} FROM rollout ORDER BY row") == [
        (0.5, None, 0.25, 0.5, None),
        (None, None, None, None, "equal_rewards"),
        (None, None, None, None, "judge_error"),
        (None, None, None, None, None),
    ]
    [first, second, third] = index.read("SELECT gid, row, logprobs, flags FROM note")
    assert first[:2] == (9, 0) and np.frombuffer(first[2], "<f2")[0] == -1.5
    assert (second[1], len(second[3])) == (1, 1) and third[1:] == (2, None, None)

"""Notes of the trainer as records of the index: values by row, unknown ones as None."""

from __future__ import annotations

import numpy as np

from atroposlib.api.archive.records import notes_in
from atroposlib.api.common.records import BatchMember, Media
from atroposlib.wire.binary import frames
from atroposlib.wire.notes import CLIPPED, GroupNotes, pack_notes


def test_each_row_with_notes_or_a_reason_is_a_record():
    notes = GroupNotes.empty(1, [2, 1, 0, 0])
    notes.advantages[:] = [0.5, np.nan, np.nan]
    notes.logprobs[0] = -1.5
    notes.flags[0], notes.diff_max[0] = CLIPPED, 0.25
    notes.reasons[1:3] = ["equal_rewards", "judge_error"]
    members = [BatchMember(gid, None, n_seq=4, n_bytes=1, media=Media.JSON) for gid in (7, 9)]
    first, second, third = notes_in(frames([pack_notes(notes)]), 3, members)
    assert (first.gid, first.row, first.batch_no, first.why) == (9, 0, 3, None)
    assert (first.advantage, first.diff_mean, first.diff_max) == (0.5, None, 0.25)
    assert first.clipped_share == 0.5 and np.frombuffer(first.logprobs, "<f2")[0] == -1.5
    assert (second.advantage, second.clipped_share) == (None, None)
    assert (second.row, second.why, len(second.flags)) == (1, "equal_rewards", 1)
    assert (third.row, third.why, third.flags) == (2, "judge_error", None)

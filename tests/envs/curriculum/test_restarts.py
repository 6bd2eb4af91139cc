"""State of a curriculum after a kill between any two records of the journal."""

from __future__ import annotations

import base64
import copy

import pytest
from hypothesis import given, strategies as st

from atroposlib.envs.curriculum.curriculum import Curriculum
from atroposlib.envs.curriculum.interface import TaskRows
from atroposlib.envs.journal.journal_records import SamplerSaved, TaskDrawn, decode_item
from atroposlib.envs.settings.config import BaseEnvConfig

TASKS = TaskRows([{"size": n % 3} for n in range(6)], range(6), levels=[1, 1, 2, 2, 3, 3])
SAMPLERS = (
    {"name": "pools", "half_life": 2},
    {"name": "replay", "share": 0.5},
    {"name": "weighted", "field": "size"},
    {"name": "staged", "levels": 3, "groups": 1},
)
FAILED: tuple[float, ...] = ()
SCORES = st.sampled_from([FAILED, (0.0, 0.0), (1.0, 0.0), (1.0, 1.0)])
# Each event appends one record: a draw, the group of an open place, or a snapshot.
EVENTS = st.lists(
    st.one_of(
        st.just("draw"),
        st.tuples(st.integers(0, 9), SCORES, st.integers(0, 9)),
        st.just("save"),
    ),
    max_size=30,
)


class Life:
    """A curriculum with its journal; places are drawn in order and end in any order."""

    def __init__(self, sampler, records=()):
        self.records = [*records]
        config = BaseEnvConfig(use_wandb=False, curriculum={"sampler": sampler})
        self.course = Curriculum(config, "toy", self.records.append)
        self.course.choose_from(TASKS)

    def follow(self, event):
        """Do what ``event`` names; an observation without an open place is a draw."""
        still_open = sorted(self.course.open)
        if event == "save":
            self.course.save_to_journal()
        elif event == "draw" or not still_open:
            self.course.task_at(sum(isinstance(r, TaskDrawn) for r in self.records))
        else:
            choice, scores, version = event
            place = still_open[choice % len(still_open)]
            item = {"id": "", "place": place, "number": self.course.open[place]}
            row = {"masks": [[1]] * len(scores), "versions": [[version]] * len(scores)}
            groups = [{"scores": [*scores], **row}] if scores else []
            # A failed rollout is done again under another name.
            name = f"rollout {place}/{len(self.records)}"
            self.course.observe(groups, item, version=version, step=0, rollout=name)

    def state(self):
        """The state of the sampler, the counts, and what was observed; the open places apart."""
        state = decode_item(base64.b64decode(self.course.checkpoint()["state"]))
        return {**state, "open": None, "events": self.course.checkpoint()["events"]}


def life_after(records, sampler, open_places):
    """The next life, from the records of a dead one as the journal gives them."""
    life = Life(sampler, records)
    snapshots = [n for n, record in enumerate(records) if isinstance(record, SamplerSaved)]
    saved = records[snapshots[-1]] if snapshots else None
    events = records[snapshots[-1] + 1 :] if snapshots else records
    life.course.go_on(saved, events, {})
    # The journal knows which places have ended.
    life.course.open = {place: life.course.open[place] for place in open_places}
    return life


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler["name"])
@given(events=EVENTS, data=st.data())
def test_a_kill_between_any_two_records_changes_neither_the_state_nor_what_follows(
    sampler, events, data
):
    whole = Life(sampler)
    after = [(whole.state(), copy.copy(whole.course.open))]  # with each number of records
    for event in events:
        whole.follow(event)
        after.append((whole.state(), copy.copy(whole.course.open)))
    killed_after = data.draw(st.integers(0, len(events)))
    state, open_places = after[killed_after]
    life = life_after(whole.records[:killed_after], sampler, open_places)
    assert life.state() == state and life.course.open == open_places
    life.records.pop()  # the snapshot of its start, so that names and places go on
    for event in events[killed_after:]:
        life.follow(event)
    assert (life.state(), life.course.open) == after[-1]

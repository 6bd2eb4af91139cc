"""Lists of tasks that change between two lives: a number is only kept where it means the same task."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from atroposlib.envs.curriculum.curriculum import Curriculum
from atroposlib.envs.curriculum.interface import TaskRows
from atroposlib.envs.curriculum.task_names import NamedTasks, change_of
from atroposlib.envs.journal.journal_records import SamplerSaved
from atroposlib.envs.settings.config import BaseEnvConfig

SAMPLERS = ("pools", "replay", {"name": "staged", "levels": 1})
NAMES = st.lists(st.text("ab", max_size=2), min_size=1, max_size=6)


def tasks_of(contents):
    return TaskRows(contents, range(len(contents)), [1] * len(contents))


def life(sampler, contents):
    records = []
    config = BaseEnvConfig(use_wandb=False, curriculum={"sampler": sampler})
    course = Curriculum(config, "toy", records.append)
    course.choose_from(tasks_of(contents))
    return course, records


def played(sampler, contents, groups):
    """A life that observed some groups, and the records of its journal."""
    course, records = life(sampler, contents)
    course.save_to_journal()
    for place in range(groups):
        task = course.task_at(place)
        item = {"id": "", "task": 0, "place": place, "epoch": 0, "number": task.number}
        group = {"scores": [1.0, 0.0], "masks": [[1], [1]]}
        course.observe([group], item, version=0, step=0, rollout=f"r{place}")
    course.task_at(groups)  # under way
    return course, records


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
@given(before=NAMES, after=NAMES, groups=st.integers(0, 8), saves=st.booleans())
def test_after_a_restart_a_number_means_the_task_that_it_meant_or_nothing_is_kept(
    sampler, before, after, groups, saves
):
    old, records = played(sampler, [{"id": name} for name in before], groups)
    if saves:
        old.save_to_journal()
    at = max(i for i, record in enumerate(records) if isinstance(record, SamplerSaved))
    new, _ = life(sampler, [{"id": name} for name in after])
    new.go_on(records[at], records[at + 1 :], dict(old.open))
    kept = before == after[: len(before)]
    assert new.counts.totals["groups"] == (groups if kept else 0)
    assert old.open.items() <= new.open.items() if kept else not new.open
    assert new.sampler.draws == (groups + 1 if kept else 0)
    assert new.task_at(99) is not None  # it goes on in every case


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (["a", "b"], ["a", "b"], None),
        (["a", "b"], ["a", "b", "c"], None),
        (["a", "b"], ["a"], "there were 2 tasks, and there are 1"),
        (["a", "b"], ["b", "a"], "the first 2 tasks are other tasks, or in another order"),
        ([{"id": 7}], [{"id": "7"}], None),
        ([{"id": 7, "ask": "a"}], [{"id": 7, "ask": "b"}], None),  # a corrected text
        ([{"ask": "a"}], [{"ask": "b"}], "other tasks"),
        (["a\ud800"], ["a\ud800"], None),
        ([{"id": "a\ud800"}], [{"id": "a"}], "other tasks"),
        (["ab", "c"], ["a", "bc"], "other tasks"),
    ],
)
def test_changes_of_a_list_are_named(before, after, problem):
    count, digest = NamedTasks(tasks_of(before)).digest()
    change = change_of(NamedTasks(tasks_of(after)), count, digest)
    assert (change is None) if problem is None else problem in change


def test_the_reason_is_in_the_log(caplog):
    old, _ = played("pools", [{"id": "a"}, {"id": "b"}], 1)
    new, _ = life("pools", [{"id": "b"}, {"id": "a"}])
    new.restore_checkpoint(old.checkpoint())
    assert "toy: the curriculum begins anew: the first 2 tasks are other tasks" in caplog.text

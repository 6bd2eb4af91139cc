"""What groups say about their task."""

from __future__ import annotations

import pytest

from atroposlib.envs.curriculum.interface import ObservedGroup, Task
from atroposlib.envs.curriculum.observation import (
    event_of,
    group_of_event,
    observed_group,
    success_of,
)

TASK = Task("t", 0)


def test_success_is_the_mean_score_between_floor_and_best():
    assert success_of([1.0, 0.0, -1.0], -1.0, 1.0) == 0.5
    assert success_of([5.0], 0.0, 1.0) == 1.0 and success_of([-5.0], 0.0, 1.0) == 0.0
    assert success_of([], 0.0, 1.0) is None


def test_tokens_of_all_groups_and_scores_of_the_first_are_observed():
    first = {
        "scores": [1.0, 0.0],
        "masks": [[-100, 5, 6], [-100, 7]],
        "versions": [[-1, 3, 4], [-1, 3]],
    }
    second = {"scores": [1.0, 0.0], "masks": [[8], [-100]]}
    group = observed_group(TASK, [first, second], floor=0.0, best=1.0, version=9)
    assert (group.scores, group.success, group.tokens, group.version) == (
        (1.0, 0.0),
        0.5,
        4,
        4,
    )


def test_the_version_of_the_run_counts_where_rows_name_none():
    [row] = [{"scores": [1.0], "masks": [[1]]}]
    assert observed_group(TASK, [row], floor=0.0, best=1.0, version=9).version == 9


@pytest.mark.parametrize("version", [0, 5])
def test_a_failed_rollout_has_no_success(version):
    group = observed_group(TASK, [], floor=0.0, best=1.0, version=version)
    assert (group.scores, group.success, group.version) == ((), None, version)


def test_a_record_of_the_journal_gives_its_group_back():
    group = ObservedGroup(TASK, (1.0, 0.0), 0.5, 8, 3)
    event = event_of(group, "r")
    assert event.rollout == "r" and group_of_event(event, [TASK]) == group
    assert group_of_event(event, []).task == Task(None)
    assert event_of(ObservedGroup(TASK), "r").rollout is None

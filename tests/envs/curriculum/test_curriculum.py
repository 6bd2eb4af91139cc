"""The curriculum of a running environment: draws, observations, counts, restarts."""

from __future__ import annotations

import pytest

from atroposlib.envs.curriculum.curriculum import CHECKED_AT, EVENTS_APART, Curriculum
from atroposlib.envs.curriculum.interface import Task
from atroposlib.envs.journal.journal_records import GroupObserved, SamplerSaved, TaskDrawn
from atroposlib.envs.settings.config import BaseEnvConfig
from atroposlib.errors import ConfigError, RolloutError
from tests.envs.curriculum.conftest import rows

OWN = """
from atroposlib.envs.curriculum import Task, TaskSampler

class Bad(TaskSampler):
    def next(self):
        return "a text"

    def observe(self, group):
        raise KeyError("mine")

class Unstorable(TaskSampler):
    def next(self):
        self.thing = object()
        return self.tasks[0]

class Outside(TaskSampler):
    def next(self):
        return Task("other", self.seed)

class Broken(TaskSampler):
    def next(self):
        return self.tasks[0]

    def metrics(self):
        raise KeyError("figures")

    def state(self):
        return {"draws": {1, "a"}} if self.seed else {"draws": self.draws}

    def restore(self, state):
        self.draws = 7
        raise KeyError("renamed")

class Mixed(TaskSampler):
    def next(self):
        self.seen = {1, "a"}
        return self.tasks[0]
"""


def curriculum(sampler="pools", gate=None, count=6, seed=0, **changes):
    records = []
    config = BaseEnvConfig(
        use_wandb=False, seed=seed, curriculum={"sampler": sampler, "gate": gate, **changes}
    )
    made = Curriculum(config, "toy", records.append)
    if sampler != "uniform":
        made.choose_from(rows(count))
    return made, records


def scored(*scores):
    return {"scores": [*scores], "masks": [[-100, 1, 2] for _ in scores]}


def item(task, place):
    return {
        "id": str(task.number),
        "task": task.content,
        "place": place,
        "epoch": place,
        "number": task.number,
    }


def play(course, place, *scores, rollout=None):
    """Draw the task of a place and observe its group."""
    task = course.task_at(place)
    groups = [scored(*scores)] if scores else []
    course.observe(
        groups, item(task, place), version=0, step=1, rollout=rollout or f"r{place}"
    )
    return task.number


def test_the_default_observes_nothing_and_records_nothing():
    course, records = curriculum("uniform")
    course.observe([scored(1.0)], {"id": "a"}, version=0, step=0, rollout=None)
    assert not course.observes and course.metrics() == {} == course.checkpoint()
    assert records == [] and course.refusal(scored(0.0), {"id": "a"}, 0) is None


def test_a_place_keeps_its_task_until_it_is_observed():
    course, records = curriculum()
    first = course.task_at(0)
    assert course.task_at(0) == first and course.task_at(1) != first
    assert [type(record) for record in records] == [TaskDrawn, TaskDrawn]
    course.observe([], item(first, 0), version=0, step=0, rollout="r")  # failed: tried again
    assert course.open.keys() == {0, 1}
    course.observe([scored(1.0, 0.0)], item(first, 0), version=0, step=0, rollout="r")
    assert course.open.keys() == {1}


def test_groups_are_counted_and_failed_rollouts_are_not_among_them():
    course, _ = curriculum()
    play(course, 0, 1.0, 0.0)
    play(course, 1, 0.0, 0.0)
    play(course, 2)
    metrics = course.metrics()
    assert metrics["curriculum/groups"] == 2 and metrics["curriculum/tokens"] == 8
    assert metrics["curriculum/useful_share"] == 0.5
    assert metrics["curriculum/tokens_per_useful_group"] == 8
    assert metrics["curriculum/pool_unseen"] == pytest.approx(4 / 6)
    assert "curriculum/useful_share" not in course.metrics()  # nothing since


def test_a_gate_refuses_with_its_reason_and_the_success():
    course, _ = curriculum("uniform", "band")
    assert course.observes
    assert course.refusal(scored(1.0, 0.0), {"id": "a"}, 0) is None
    refusal = course.refusal(scored(0.1, 0.0), {"id": "a"}, 0)
    assert refusal == "success outside of 0.2 to 0.8 (success 0.05)"


def test_the_best_score_may_be_set_and_has_to_be_above_the_floor():
    course, _ = curriculum("uniform", "band", best=10.0)
    assert course.refusal(scored(4.0, 6.0), {"id": "a"}, 0) is None
    with pytest.raises(ConfigError, match="floor 1 has to be below best 1"):
        curriculum("uniform", "band", floor=1.0)


def go_on_from(records, count=6):
    """The next life: the events since the last snapshot of the journal."""
    course, _ = curriculum(count=count)
    last = max((i for i, r in enumerate(records) if isinstance(r, SamplerSaved)), default=-1)
    events = [r for r in records[last + 1 :] if not isinstance(r, SamplerSaved)]
    course.go_on(records[last] if last >= 0 else None, events, {})
    return course


@pytest.mark.parametrize("snapshot_at", [None, 0, 3, 7])
@pytest.mark.parametrize("killed_after", range(1, 21, 3))
def test_a_life_after_a_kill_draws_what_the_dead_one_would_have_drawn(
    snapshot_at, killed_after
):
    whole, records = curriculum()
    sequence = []
    for place in range(20):
        if place == snapshot_at:
            whole.save_to_journal()
        sequence.append(play(whole, place, float(place % 3 == 0), 0.0))
    kept = records[: 2 * killed_after]  # whatever the kill left
    course = go_on_from(kept)
    begun = sum(isinstance(r, TaskDrawn) for r in kept)
    done = sum(isinstance(r, GroupObserved) for r in kept)
    redone = [course.task_at(place).number for place in range(done, begun)]
    assert redone == sequence[done:begun]
    rest = [play(course, place, float(place % 3 == 0), 0.0) for place in range(done, 20)]
    assert rest == sequence[done:]
    assert course.metrics()["curriculum/groups"] == 20


def test_a_group_that_a_restart_brings_again_is_observed_once():
    course, records = curriculum()
    number = play(course, 0, 1.0, 0.0, rollout="same")
    again = go_on_from(records)
    task = rows(6)[number]
    again.observe([scored(1.0, 0.0)], item(task, 0), version=0, step=0, rollout="same")
    assert again.metrics()["curriculum/groups"] == 1


def test_the_later_of_checkpoint_and_journal_counts():
    course, records = curriculum()
    play(course, 0, 1.0, 0.0)
    early = course.checkpoint()
    play(course, 1, 0.0, 0.0)
    late = course.checkpoint()
    for saved, events in ((early, records), (late, records[:2])):
        again, _ = curriculum()
        again.restore_checkpoint(saved)
        again.go_on(None, [], {})
        assert again.metrics()["curriculum/groups"] in (1, 2)
    again, _ = curriculum()
    again.restore_checkpoint(late)
    again.go_on(SamplerSaved(b"", 1), [], {})  # older: not read
    assert again.metrics()["curriculum/groups"] == 2


def test_the_journal_gets_a_snapshot_now_and_then():
    course, records = curriculum()
    for place in range(EVENTS_APART):
        play(course, place, 1.0)
    snapshots = [record for record in records if isinstance(record, SamplerSaved)]
    assert [record.events for record in snapshots] == [EVENTS_APART, 2 * EVENTS_APART]


def test_another_sampler_begins_anew_and_a_damaged_state_is_left_out(caplog):
    course, _ = curriculum()
    play(course, 0, 1.0)
    other, _ = curriculum("replay")
    other.restore_checkpoint(course.checkpoint())
    other.restore_checkpoint({"state": "?", "events": 1})
    assert other.metrics()["curriculum/groups"] == 0
    assert "begins anew: the sampler was pools and is replay" in caplog.text
    assert "begins anew: binascii" in caplog.text or "sampler.restore" in caplog.text


def test_tasks_of_a_class_are_recognised_by_their_content():
    course, _ = curriculum()
    task = course.draw_uncounted()
    assert course.observation_of([scored(1.0)], task.content, 0).task == task
    assert course.observation_of([scored(1.0)], ("unknown",), 0).task == Task(("unknown",))


def test_an_item_of_a_class_that_comes_again_from_the_journal_is_recognised():
    course, _ = curriculum()  # the next life has drawn nothing yet
    task = rows(6)[4]
    assert course.observation_of([scored(1.0)], task.content, 0).task == task


@pytest.mark.parametrize(
    "item",
    [
        {"number": 3, "question": "of a class"},
        {"number": 99, "question": "beyond the list"},
        {"task": "sort", "place": "Rome", "number": 1},
    ],
)
def test_fields_of_a_class_named_as_those_of_a_function_are_no_number_of_a_task(item):
    course, _ = curriculum()
    assert course.observation_of([scored(1.0)], item, 0).task == Task(item)


def test_scores_outside_of_the_range_are_named_once_with_the_settings(caplog):
    course, _ = curriculum()
    play(course, 0, 1.0, 0.0)
    assert not caplog.text
    play(course, 1, -1.0, 1.0)
    play(course, 2, 1000.0, 1.0)
    (line,) = caplog.messages
    assert "scores of -1 to 1" in line and "curriculum.floor 0 and curriculum.best 1" in line


def test_errors_of_ones_own_sampler_name_environment_and_stage(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    course, _ = curriculum(f"{path}:Bad")
    with pytest.raises(RolloutError, match="no entry of tasks.*toy: sampler.next"):
        course.task_at(0)
    with pytest.raises(RolloutError, match="mine.*toy.*sampler.observe"):
        course.observe([scored(1.0)], {"id": "a"}, version=0, step=0, rollout=None)
    course, _ = curriculum(f"{path}:Unstorable")
    with pytest.raises(ConfigError, match="override state and restore"):
        for place in range(CHECKED_AT):
            course.task_at(place)


@pytest.mark.parametrize("number", [-1, 6])
def test_a_task_beyond_the_list_is_an_error_of_ones_own_sampler(tmp_path, number):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    course, records = curriculum(f"{path}:Outside", seed=number)
    with pytest.raises(RolloutError, match=f"number {number}, no entry of the 6 tasks"):
        course.task_at(0)
    assert not records  # nothing that the next life would repeat


def test_every_method_of_ones_own_sampler_fails_under_its_name(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    course, _ = curriculum(f"{path}:Broken")
    with pytest.raises(RolloutError, match="figures.*toy.*sampler.metrics"):
        course.metrics()
    course, _ = curriculum(f"{path}:Mixed")
    course.task_at(0)
    with pytest.raises(RolloutError, match="toy.*sampler.state"):
        course.save_to_journal()


def test_a_sampler_that_cannot_restore_an_older_state_begins_anew_and_the_run_goes_on(
    tmp_path, caplog
):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    course, records = curriculum(f"{path}:Broken")
    course.task_at(0)
    course.save_to_journal()
    again, _ = curriculum(f"{path}:Broken")
    again.go_on(records[-1], [TaskDrawn(1, 0)], {0: 0})
    assert again.sampler.draws == 0 and not again.open
    assert "begins anew" in caplog.text and "renamed" in caplog.text

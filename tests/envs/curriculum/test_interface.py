"""The parts that authors subclass: tasks, observed groups, and a sampler of one's own."""

from __future__ import annotations

from collections import Counter, deque

import numpy as np
import pytest

from atroposlib.envs.curriculum.interface import TaskRows, TaskSampler
from atroposlib.envs.journal.journal_records import decode_item, encode_item
from tests.envs.curriculum.conftest import group, rows


class Counting(TaskSampler):
    """Draws at random, and keeps several kinds of attributes."""

    def __init__(self, tasks, *, seed=0):
        super().__init__(tasks, seed=seed)
        self.seen = Counter()
        self.last = deque(maxlen=2)
        self.failed = set()

    def next(self):
        return self.random.choice(self.tasks)

    def observe(self, group):
        self.seen[group.task.number] += 1
        self.last.append(group.task.number)
        if not group.scores:
            self.failed.add(group.task.number)


def test_a_group_is_useful_where_its_scores_differ():
    [task] = rows(1)
    assert group(task, 1.0, 0.0).is_useful
    assert not group(task, 0.0, 0.0).is_useful
    assert not group(task).is_useful and group(task).success is None


def test_rows_become_tasks_of_the_trained_indices_with_their_levels():
    tasks = TaskRows(["a", "b", "c"], [2, 0], levels=[1, 2, 3])
    assert [(t.content, t.number, t.level) for t in tasks] == [("c", 0, 3), ("a", 1, 1)]
    assert tasks[-1].content == "a" and [t.number for t in tasks[:1]] == [0]
    with pytest.raises(IndexError):
        tasks[2]


def test_draws_of_a_sampler_depend_on_seed_and_number_of_the_draw_alone():
    first, second = Counting(rows(50)), Counting(rows(50))
    sequence = [first.draw().number for _ in range(20)]
    second.draws = 10  # restored, without a state of the generator
    assert [second.draw().number for _ in range(10)] == sequence[10:]
    assert [Counting(rows(50), seed=1).draw().number for _ in range(9)] != sequence[:9]


def test_plain_attributes_of_a_sampler_are_its_state():
    old, new = Counting(rows(9)), Counting(rows(9))
    for n in range(4):
        old.draw()
        old.observe(group(old.tasks[n], 1.0) if n else group(old.tasks[n]))
    new.restore(old.state())
    assert (new.seen, new.last, new.failed, new.draws) == (
        Counter({0: 1, 1: 1, 2: 1, 3: 1}),
        deque([2, 3]),
        {0},
        4,
    )
    assert isinstance(new.seen, Counter) and new.last.maxlen == 2


class Weighing(TaskSampler):
    """Keeps arrays and numbers of numpy."""

    def __init__(self, tasks, *, seed=0):
        super().__init__(tasks, seed=seed)
        self.weights = np.ones(len(tasks), np.float32)
        self.means = [np.float64(0.5)]

    def next(self):
        return self.tasks[np.argmax(self.weights)]

    def observe(self, group):
        self.weights[group.task.number] *= 0.5


def test_arrays_are_kept_with_their_type():
    old, new = Weighing(rows(3)), Weighing(rows(3))
    old.observe(group(old.draw(), 1.0))
    stored = encode_item(old.state())
    new.restore(decode_item(stored))
    assert new.weights.dtype == np.float32 and new.weights.tolist() == [0.5, 1.0, 1.0]
    assert new.means == [0.5] and new.draw().number == 1

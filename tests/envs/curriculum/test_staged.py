"""Stages: the level follows success."""

from __future__ import annotations

import pytest

from atroposlib.envs.curriculum.interface import TaskRows
from atroposlib.envs.curriculum.staged import Staged
from atroposlib.errors import ConfigError
from tests.envs.curriculum.conftest import group, rows


def leveled(each=4, levels=3):
    level_of = [level for level in range(1, levels + 1) for _ in range(each)]
    names = [f"{level}.{n}" for n, level in enumerate(level_of)]
    return TaskRows(names, range(len(names)), level_of)


def test_the_level_rises_and_falls_with_the_success_of_its_last_groups():
    sampler = Staged(leveled(), levels=3, groups=2)
    assert {sampler.draw().level for _ in range(8)} == {1}
    one, two = sampler.tasks[0], sampler.tasks[4]
    sampler.observe(group(one, 1.0, 1.0))
    sampler.observe(group(two, 0.0, 0.0))  # of another level
    sampler.observe(group(one))  # failed
    assert sampler.level == 1
    sampler.observe(group(one, 1.0, 1.0))
    assert sampler.level == 2 and sampler.draw().level == 2
    for _ in range(2):
        sampler.observe(group(two, 0.0, 0.0))
    assert sampler.level == 1 and sampler.metrics() == {"level": 1.0}


def test_each_pass_over_a_level_has_each_of_its_tasks_once():
    sampler = Staged(leveled(each=5), levels=3)
    first, second = ([sampler.draw().number for _ in range(5)] for _ in range(2))
    assert sorted(first) == sorted(second) == [0, 1, 2, 3, 4]


def test_a_restored_sampler_goes_on_at_its_level():
    old = Staged(leveled(), levels=3, groups=1)
    old.observe(group(old.tasks[0], 1.0))
    old.draw()
    new = Staged(leveled(), levels=3, groups=1)
    new.restore(old.state())
    assert [new.draw().number for _ in range(9)] == [old.draw().number for _ in range(9)]


def test_tasks_without_a_level_and_bounds_out_of_order_are_refused():
    with pytest.raises(ConfigError, match="keyword of that name"):
        Staged(rows(3), levels=3)
    with pytest.raises(ConfigError, match="in order"):
        Staged(leveled(), levels=3, up=0.1, down=0.5)

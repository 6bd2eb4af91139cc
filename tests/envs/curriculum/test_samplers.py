"""Samplers without estimates."""

from __future__ import annotations

from collections import Counter

import pytest

from atroposlib.envs.curriculum.interface import TaskRows
from atroposlib.envs.curriculum.samplers import ReplayUseful, Uniform, Weighted
from atroposlib.envs.function_env.data import Indexed
from atroposlib.errors import ConfigError
from tests.envs.curriculum.conftest import group, rows


@pytest.mark.parametrize("seed", [0, 7])
def test_uniform_has_the_order_of_the_data_set_itself(seed):
    own, indices = [f"t{n}" for n in range(12)], [1, 3, 4, 8, 11]
    source = Indexed(own, indices, seed=seed, shuffle=True, epochs=-1)
    sampler = Uniform(TaskRows(own, indices), seed=seed)
    assert [sampler.draw().content for _ in range(14)] == [
        source.at(place)["task"] for place in range(14)
    ]


def test_weighted_draws_in_the_ratio_of_a_field():
    tasks = TaskRows([{"w": 0}, {"w": 1}, {"w": 3}], range(3))
    sampler = Weighted(tasks, field="w")
    drawn = Counter(sampler.draw().number for _ in range(4000))
    assert drawn[0] == 0 and drawn[2] / drawn[1] == pytest.approx(3, rel=0.15)


def test_weights_may_be_those_of_the_values_of_a_field():
    tasks = TaskRows([{"source": "a"}, {"source": "b"}], range(2))
    sampler = Weighted(tasks, field="source", weights={"a": 0.0})  # b: 1
    assert {sampler.draw().number for _ in range(50)} == {1}


@pytest.mark.parametrize("content", [{"w": -1}, {"w": "x"}, {}, "text", {"w": True}])
def test_a_weight_that_is_none_is_refused(content):
    with pytest.raises(ConfigError, match="'w' of task 0 is"):
        Weighted(TaskRows([content], range(1)), field="w")


def test_weights_of_zero_alone_are_refused():
    with pytest.raises(ConfigError, match="every task has weight 0"):
        Weighted(TaskRows([{"w": 0}], range(1)), field="w")


def test_replay_repeats_useful_tasks_for_its_share_of_draws():
    sampler = ReplayUseful(rows(100), share=0.3)
    for n in (4, 9):
        sampler.observe(group(sampler.tasks[n], 1.0, 0.0))
    sampler.observe(group(sampler.tasks[9], 0.0, 0.0))  # no more
    drawn = [sampler.draw().number for _ in range(1000)]
    assert drawn.count(4) / 1000 == pytest.approx(0.3, abs=0.05)
    assert sampler.metrics()["repeated_share"] == pytest.approx(0.3, abs=0.05)


def test_replay_continues_its_pass_after_a_restart():
    old = ReplayUseful(rows(30), share=0.5)
    old.observe(group(old.tasks[3], 1.0, 0.0))
    for _ in range(10):
        old.draw()
    new = ReplayUseful(rows(30), share=0.5)
    new.restore(old.state())
    assert [new.draw().number for _ in range(40)] == [old.draw().number for _ in range(40)]


def test_settings_of_replay_are_checked():
    with pytest.raises(ConfigError, match="share is 0 to 1"):
        ReplayUseful(rows(1), share=2)

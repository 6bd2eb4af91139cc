"""Difficulty pools: estimates, draws, expiry and restarts."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from atroposlib.envs.curriculum.pools import (
    EASY,
    HARD,
    UNSEEN,
    USEFUL,
    DifficultyPools,
    Estimate,
)
from atroposlib.errors import ConfigError
from tests.envs.curriculum.conftest import group, rows


def test_an_estimate_is_a_mean_in_which_older_versions_count_less():
    estimate = Estimate()
    estimate.add(0.0, version=0, half_life=10)
    estimate.add(1.0, version=10, half_life=10)  # the first counts half by now
    assert (estimate.weight, estimate.total) == (1.5, 1.0)
    assert estimate.weight_at(20, 10) == 0.75
    assert estimate.weight_at(3, 10) == 1.5  # of a new run


def test_tasks_move_between_pools_by_their_success():
    sampler = DifficultyPools(rows(4))
    hard, easy, useful, failed = sampler.tasks
    sampler.observe(group(hard, 0.0, 0.0))
    sampler.observe(group(easy, 1.0, 1.0))
    sampler.observe(group(useful, 1.0, 0.0))
    sampler.observe(group(failed))  # no score is not a score of 0
    assert [sampler.pool(n) for n in range(4)] == [HARD, EASY, USEFUL, UNSEEN]
    sampler.observe(group(hard, 1.0, 0.0))
    assert sampler.pool(0) == USEFUL
    assert sampler.metrics()["pool_useful"] == 0.5


def test_every_task_is_drawn_once_before_any_is_repeated():
    sampler = DifficultyPools(rows(20))
    assert sorted(sampler.draw().number for _ in range(20)) == list(range(20))


def test_impossible_tasks_are_drawn_seldom_and_still_explored():
    sampler = DifficultyPools(rows(100), explore=0.1)
    for n in range(100):
        sampler.observe(group(sampler.tasks[n], float(n < 10), 0.0))
    drawn = Counter(sampler.pool(sampler.draw().number) for _ in range(5000))
    # Weights 10 x 1 and 90 x 0.02: 0.9 x 10 / 11.8 and 0.1 x 10 / 100 of the draws.
    assert drawn[USEFUL] / 5000 == pytest.approx(0.9 * 10 / 11.8 + 0.01, abs=0.03)
    assert drawn[HARD] > 0


def test_a_pool_of_weight_zero_is_drawn_where_no_other_has_tasks():
    sampler = DifficultyPools(rows(2), weights={HARD: 0}, explore=0)
    for task in sampler.tasks:
        sampler.observe(group(task, 0.0))
    assert {sampler.draw().number for _ in range(4)} == {0, 1}


def test_a_task_is_unseen_again_when_its_estimate_is_old():
    sampler = DifficultyPools(rows(3), half_life=1.0)
    sampler.observe(group(sampler.tasks[0], 0.0))
    sampler.observe(group(sampler.tasks[1], 1.0, 0.0, version=3))
    sampler.draw()
    assert sampler.pool(0) == HARD  # 1 / 8 of a group
    sampler.observe(group(sampler.tasks[1], 1.0, 0.0, version=4))
    sampler.draw()
    assert sampler.pool(0) == UNSEEN  # 1 / 16


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weights": {"to_easy": 1}}, "no pool 'to_easy'.*too_easy"),
        ({"weights": {"useful": -1}}, "below 0"),
        ({"low": 0.9, "high": 0.1}, "low at most high"),
        ({"half_life": 0}, "half_life above 0"),
    ],
)
def test_settings_of_pools_are_checked(settings, message):
    with pytest.raises(ConfigError, match=message):
        DifficultyPools(rows(2), **settings)


EVENTS = st.lists(
    st.one_of(
        st.none(),  # a draw
        st.tuples(st.integers(0, 7), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 40)),
    ),
    max_size=60,
)


@given(EVENTS, EVENTS)
def test_a_restored_sampler_goes_on_as_the_old_one(before, after):
    def follow(sampler, events):
        drawn = []
        for event in events:
            if event is None:
                drawn.append(sampler.draw().number)
            else:
                number, success, version = event
                sampler.observe(group(sampler.tasks[number], success, version=version))
        return drawn + [sampler.draw().number for _ in range(12)]

    old, new = DifficultyPools(rows(8), half_life=3), DifficultyPools(rows(8), half_life=3)
    follow(old, before)
    new.restore(old.state())
    assert follow(new, after) == follow(old, after)
    assert new.metrics() == old.metrics()


def test_an_old_estimate_keeps_its_pool_until_the_next_draw_also_over_a_restart():
    old, new = (DifficultyPools(rows(2), half_life=1.0, explore=0) for _ in range(2))
    first, second = old.draw(), old.draw()
    old.observe(group(second, 0.0, version=0))
    old.observe(group(first, 0.0, version=4))  # the estimate of the second: 1 / 16 of a group
    new.restore(old.state())
    assert old.pool(second.number) == new.pool(second.number) == HARD
    assert new.draw() == old.draw() == second
    assert old.pool(second.number) == new.pool(second.number) == UNSEEN


def test_a_task_that_stays_impossible_is_tried_again_at_doubling_distances():
    weights = {USEFUL: 1e-9, HARD: 0}  # a task that is unseen again is drawn at once
    sampler = DifficultyPools(rows(2), weights=weights, explore=0, half_life=1.0)
    impossible, useful = sampler.tasks
    tried = []
    for version in range(100):
        sampler.observe(group(useful, 1.0, 0.0, version=version))
        if sampler.draw() == impossible:
            tried.append(version)
            sampler.observe(group(impossible, 0.0, version=version))
    # After 4 versions a group counts 1 / 16; from then on a wait is as long as all before.
    assert tried == [0, 4, 9, 19, 39, 79]


def test_a_task_that_became_possible_is_found_within_twice_the_versions():
    weights = {USEFUL: 1e-9, HARD: 0}
    sampler = DifficultyPools(rows(2), weights=weights, explore=0, half_life=1.0)
    late, useful = sampler.tasks
    for version in range(100):
        sampler.observe(group(useful, 1.0, 0.0, version=version))
        if sampler.draw() == late:
            sampler.observe(group(late, float(version >= 21), 0.0, version=version))
        if sampler.pool(0) == USEFUL:
            break
    assert 21 <= version <= 2 * 21


def test_a_state_of_an_earlier_version_is_read():
    old, new = DifficultyPools(rows(3)), DifficultyPools(rows(3))
    old.observe(group(old.tasks[1], 0.0, version=5))
    state = old.state()
    state["tasks"] = [entry[:6] for entry in state["tasks"]]
    new.restore(state)
    assert new.state() == old.state()

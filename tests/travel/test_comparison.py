"""Comparison of rewards: counts by hand, and invariants."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from atroposlib.errors import ConfigError
from atroposlib.travel.comparison import Rescored, add_advantages, compare, reward_figures
from example_trainer.settings.loss import AdvantageSettings
from tests.examples import examples

GRPO = AdvantageSettings()


def rows_of(old, new, gid=1, step=1, env="sums"):
    return [
        Rescored(gid, row, env, "a", step, step, gid, before, after)
        for row, (before, after) in enumerate(zip(old, new))
    ]


def compared(rows, settings=GRPO, most=20):
    add_advantages(rows, settings)
    return compare(rows, most)


def test_an_inverted_reward_turns_every_advantage_of_its_step():
    rows = rows_of([1, 0, 1], [1, 0, 1]) + rows_of([1, 0, 1], [0, 1, 0], gid=2, step=2)
    comparison = compared(rows)
    assert comparison.turned_steps == [2]
    assert (comparison.total.turned, comparison.total.advantages) == (3, 6)
    assert comparison.by_step[2].correlation == pytest.approx(-1)
    assert comparison.by_step[1].pairs_changed == 0
    assert comparison.by_step[2].pairs_changed == 2  # the equal pair stays a tie


@pytest.mark.parametrize(
    ("old", "new", "gain", "lose"),
    [
        ([1, 1], [1, 0], 1, 0),
        ([1, 0], [1, 1], 0, 1),
        ([1, 1], [0, 0], 0, 0),
        ([1, 0], [0, 1], 0, 0),
    ],
)
def test_groups_that_gain_or_lose_their_spread_are_counted(old, new, gain, lose):
    total = compared(rows_of(old, new)).total
    assert (total.gain_spread, total.lose_spread) == (gain, lose)


def test_a_failed_reward_has_no_advantage_and_leaves_the_rest_of_its_group():
    rows = rows_of([1, 0, 0], [1, None, 0])
    rows[1].failure, rows[1].failure_text = "timeout", "late"
    comparison = compared(rows)
    assert [row.new_advantage for row in rows] == [1.0, None, -1.0]
    assert comparison.failures == {"timeout": 1}
    assert comparison.failure_texts == {"timeout": "late"}
    assert comparison.total.scored == 2


def test_rollouts_that_were_not_trained_on_have_no_advantage():
    rows = rows_of([1, 0], [0, 1], step=None)
    comparison = compared(rows)
    assert comparison.total.advantages == 0
    assert comparison.by_step == {}


def test_the_estimator_of_the_settings_is_used():
    rows = rows_of([1, 0], [3, 1])
    add_advantages(rows, AdvantageSettings(advantage="raw"))
    assert [row.new_advantage for row in rows] == [3, 1]


def test_the_largest_disagreements_come_first_and_equal_rewards_are_none():
    rows = rows_of([0, 0, 0, 1], [0, 5, -7, 1])
    assert [row.row for row in compared(rows).largest] == [2, 1]
    assert [row.row for row in compared(rows, most=1).largest] == [2]


def test_no_rollout_at_all_is_an_error():
    with pytest.raises(ConfigError, match="no rollout"):
        compare([], 20)


numbers = st.floats(-10, 10).map(lambda value: round(value, 3))


@examples(60)
@given(st.lists(numbers, min_size=2, max_size=8), st.floats(0.1, 5), numbers)
def test_a_scaled_and_shifted_reward_turns_and_reorders_nothing(old, scale, shift):
    rows = rows_of(old, [value * scale + shift for value in old])
    total = compared(rows).total
    assert (total.turned, total.pairs_changed) == (0, 0)
    assert (total.gain_spread, total.lose_spread) == (0, 0)


@examples(60)
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8))
def test_figures_of_swapped_rewards_are_mirrored(pairs):
    old, new = zip(*pairs)
    there = reward_figures(rows_of(old, new))
    back = reward_figures(rows_of(new, old))
    assert (there.gain_spread, there.lose_spread) == (back.lose_spread, back.gain_spread)
    assert there.pairs_changed == back.pairs_changed
    assert there.old_mean == back.new_mean

"""Statistics of nested rewards, by hand and by their laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from atroposlib.utils.advantages import (
    allclose_to_first,
    compute_discounted_returns,
    compute_grpo_process_supervision_advantages,
    compute_stats,
)

rewards = st.floats(min_value=-1e3, max_value=1e3, width=32)
trajectories = st.lists(st.lists(rewards, max_size=6), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("values", "each"),
    [
        ([1.0, 1.0, 1.0 + 1e-7], [True, True, True]),
        ([1.0, 1.1, 1.0], [True, False, True]),
        ([[1, 2], [1, 2], [1, 3]], [True, True, False]),
        ([[[1.0]], [[1.0]]], [True, True]),
        ((5,), [True]),
    ],
)
def test_entries_are_compared_with_the_first_entry(values, each):
    vector = allclose_to_first(values, return_vector=True)
    assert vector.tolist() == each
    assert allclose_to_first(values) is all(each)


def test_tolerances_and_nan_equality_are_options():
    assert allclose_to_first([1.0, 1.1], rtol=0.2)
    assert allclose_to_first([0.0, 0.5], atol=0.5)
    nans = [float("nan"), float("nan")]
    assert not allclose_to_first(nans)
    assert allclose_to_first(nans, equal_nan=True)
    for unusable in ([], 3.0, [[1], [1, 2]]):
        with pytest.raises(ValueError):
            allclose_to_first(unusable)


@pytest.mark.parametrize(
    ("data", "mean", "var"),
    [
        ([1, 3], 2.0, 1.0),
        ([[1.0], [2.0, 3.0], []], 2.0, 2 / 3),
        (((1, 2), [3, [4]]), 2.5, 1.25),
        (np.array([[1, 2], [3, 4]]), 2.5, 1.25),
        ([np.float32(1), np.int64(3)], 2.0, 1.0),
        (7, 7.0, 0.0),
        ([1e9 + 0.1] * 3, 1e9 + 0.1, 0.0),
        ([1e8, 1e8 + 1], 1e8 + 0.5, 0.25),
    ],
)
def test_statistics_cover_all_nested_numbers(data, mean, var):
    assert compute_stats(data) == {"mean": pytest.approx(mean), "var": pytest.approx(var)}


@pytest.mark.parametrize("data", [[], [[], []], ["1"], [None], [float("nan")], {"a": 1}])
def test_input_without_statistics_is_rejected(data):
    with pytest.raises(ValueError):
        compute_stats(data)


@pytest.mark.parametrize(
    ("steps", "gamma", "returns"),
    [
        ([1, 2, 3], 0.5, [2.75, 3.5, 3.0]),
        ([1.0, 1.0], 1.0, [2.0, 1.0]),
        ([0.0, 0.0, 8.0], 0.0, [0.0, 0.0, 8.0]),
        ([], 0.9, []),
    ],
)
def test_discounted_returns_equal_values_computed_by_hand(steps, gamma, returns):
    assert compute_discounted_returns(steps, gamma).tolist() == returns
    assert compute_discounted_returns(steps, gamma).dtype == np.float32


def test_arrays_keep_their_precision_and_whole_numbers_are_not_cut():
    whole = np.array([1, 1, 1])
    assert compute_discounted_returns(whole, 0.5).tolist() == [1.75, 1.5, 1.0]
    assert whole.tolist() == [1, 1, 1]
    precise = np.array([1.0, 1e-12])
    assert compute_discounted_returns(precise, 1.0).tolist() == [1.0 + 1e-12, 1e-12]


@given(st.lists(rewards, min_size=1, max_size=8), st.floats(0, 1))
def test_a_return_is_its_reward_plus_the_discounted_next(steps, gamma):
    returns = compute_discounted_returns(np.array(steps, np.float64), gamma)
    after = [*returns[1:], 0.0]
    for reward, here, following in zip(steps, returns, after):
        assert here == pytest.approx(reward + gamma * following)


def test_process_advantages_equal_values_computed_by_hand():
    # mean 1, deviation 1: steps become 1, -1 | 1, -1
    first, second = compute_grpo_process_supervision_advantages([[2, 0], [2, 0]])
    assert first.tolist() == second.tolist() == [0.0, -1.0]
    (only,) = compute_grpo_process_supervision_advantages([(2, 0, 2, 0)], gamma=0.5)
    assert only.tolist() == [1 - 0.5 + 0.25 - 0.125, -1 + 0.5 - 0.25, 0.5, -1.0]
    (last,) = compute_grpo_process_supervision_advantages([[2, 0]], gamma=0)
    assert last.tolist() == [1.0, -1.0]


@pytest.mark.parametrize("steps", [[[1, 1], [1]], [[]], []])
def test_steps_of_equal_reward_are_rejected(steps):
    with pytest.raises(ValueError):
        compute_grpo_process_supervision_advantages(steps)


@given(trajectories)
def test_the_first_advantages_sum_to_zero_and_ignore_a_shift(group):
    numbers = [step for row in group for step in row]
    if not numbers or np.std(numbers) < 1e-2:
        return
    advantages = compute_grpo_process_supervision_advantages(group)
    assert [len(row) for row in advantages] == [len(row) for row in group]
    assert sum(row[0] for row in advantages if len(row)) == pytest.approx(0.0, abs=1e-6)
    moved = compute_grpo_process_supervision_advantages([[s + 5 for s in r] for r in group])
    for row, other in zip(advantages, moved):
        assert other == pytest.approx(row, abs=1e-4)

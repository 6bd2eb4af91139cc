"""Conversion of the result of a rollout into one score and named metrics."""

from __future__ import annotations

import asyncio
from functools import partial

import numpy as np
import pytest
from hypothesis import given, strategies as st

from atroposlib.envs.function_env.rewards import Reward, RewardPlan, call_user, combine_rewards
from atroposlib.errors import ConfigError, RolloutError


@pytest.mark.parametrize(
    ("returned", "weights", "score", "metrics"),
    [
        (0.5, {}, 0.5, {}),
        (True, {}, 1.0, {}),
        (-2, {}, -2.0, {}),
        (np.float32(0.25), {}, 0.25, {}),
        (None, {}, None, {}),
        (None, {"a": 1.0}, None, {}),
        ({"a": 1, "b": 0.5}, {}, 1.5, {"a": 1.0, "b": 0.5}),
        ({"a": 1, "b": 0.5}, {"a": 2.0, "b": 0.2}, 2.1, {"a": 1.0, "b": 0.5}),
        ({"a": 1, "b": 7}, {"a": 1.0, "b": 0.0}, 1.0, {"a": 1.0, "b": 7.0}),
        ({"a": 1, "b": None}, {"a": 1.0, "b": 0.0}, 1.0, {"a": 1.0}),
        ({"a": None, "b": 1}, {"a": 1.0, "b": 1.0}, None, {"b": 1.0}),
        (Reward(0.7, {"steps": 3}), {}, 0.7, {"steps": 3.0}),
        (Reward(None, {"steps": 3}), {"a": 1.0}, None, {"steps": 3.0}),
    ],
)
def test_rewards_are_weighted_and_none_means_no_score(returned, weights, score, metrics):
    reward = combine_rewards(returned, weights)
    assert reward.score == (None if score is None else pytest.approx(score))
    assert reward.metrics == metrics


@pytest.mark.parametrize(
    ("returned", "weights", "problem"),
    [
        ({"exat": 1}, {"exact": 1.0}, r"'exat' has no weight: .*; did you mean exact\?"),
        ({"a": 1}, {"a": 1.0, "b": 1.0}, "no value for reward 'b'"),
        (1.0, {"a": 1.0}, "returns a dict of them, not float"),
        ("7", {}, "a number or None, not str '7'"),
        ([1.0], {}, "not list"),
        (float("nan"), {}, "the score is nan"),
        ({"a": float("inf")}, {}, "reward 'a' is inf"),
    ],
)
def test_an_invalid_reward_is_rejected_by_name_and_not_counted_as_zero(
    returned, weights, problem
):
    with pytest.raises(ValueError, match=problem):
        combine_rewards(returned, weights)


@given(
    st.dictionaries(
        st.sampled_from("abcdef"), st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1
    )
)
def test_the_score_is_the_weighted_sum_in_any_order(named):
    values = {name: value for name, (value, _) in named.items()}
    weights = {name: weight for name, (_, weight) in reversed(list(named.items()))}
    expected = sum(value * weight for value, weight in named.values())
    assert combine_rewards(values, weights).score == pytest.approx(expected)


async def exact(task, answer):
    return answer == task


def short(task, answer, config):
    return 1 - len(answer) / config["most"]


async def test_reward_functions_may_be_sync_or_async():
    plan = RewardPlan.of({exact: 1.0, short: 0.5})
    reward = await plan.score("env", "item", "7", "7", {"config": {"most": 4}})
    assert reward == Reward(1.375, {"exact": 1.0, "short": 0.75})
    assert (await plan.score("env", "item", "7", None, {})).score is None
    assert plan.with_weights({"short": 0}).weights == {"exact": 1.0, "short": 0.0}


async def test_a_failing_reward_function_raises_with_env_item_and_function():
    def broken(task, answer):
        raise KeyError("gold")

    with pytest.raises(
        RolloutError, match="KeyError: 'gold'.*env: reward broken failed on item '3.4'"
    ):
        await RewardPlan.of([exact, broken]).score("env", "3+4", "7", "7", {})


async def test_a_sync_reward_function_does_not_block_the_event_loop():
    loop = asyncio.get_running_loop()

    def waits_for_the_loop(task, answer):
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(timeout=600)
        return 1.0

    assert await call_user(waits_for_the_loop, "task", "answer", config=None) == 1.0


def test_ambiguous_and_unknown_reward_names_are_rejected():
    with pytest.raises(ConfigError, match="names or functions, not both"):
        RewardPlan.of({"exact": 1.0, exact: 1.0})
    with pytest.raises(ConfigError, match="two functions have the same name"):
        RewardPlan.of([exact, partial(exact)])
    with pytest.raises(ConfigError, match=r"no reward 'exat', .*; did you mean exact\?"):
        RewardPlan.of([exact]).with_weights({"exat": 1.0})

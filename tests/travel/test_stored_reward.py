"""Rewards of stored rollouts: names, arguments, and refusals."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError, RolloutError
from atroposlib.travel.stored_reward import load_stored_reward, require_arguments, values_of

REWARDS = "tests/travel/rewards.py"
RECORD = {
    "item": "a",
    "answer": "4",
    "reward": 0.5,
    "metadata": {"target": 4, "reward": "of the metadata", "gold": "5"},
}


@pytest.mark.parametrize(
    ("name", "score"),
    [
        (REWARDS, 1.0),  # NAME is reward
        (f"{REWARDS}:reward", 1.0),
        ("tests.travel.rewards:reward", 1.0),
        (f"{REWARDS}:in_lists", 1.0),
        (f"{REWARDS}:of_item", 1.0),
        (f"{REWARDS}:uncertain", 0.5),
    ],
)
def test_a_reward_gets_the_arguments_that_it_names(name, score):
    reward = load_stored_reward(name)
    values = values_of(RECORD, {"a": {"gold": "4"}})
    assert reward.score(reward.call(values)) == score


def test_columns_of_a_task_override_metadata_and_facts_override_both():
    values = values_of(RECORD, {"a": {"gold": "4", "item": "b"}})
    assert (values["gold"], values["item"], values["reward"]) == ("4", "a", 0.5)


def test_a_registered_reward_is_called_with_a_list():
    reward = load_stored_reward("repetition_penalty")
    assert reward.in_lists
    assert isinstance(reward.score(reward.call(values_of(RECORD, {}))), float)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (f"{REWARDS}:in_sandbox", "needs sandbox.*env try"),
        (f"{REWARDS}:rewrd", "did you mean|reward"),
        ("no_such_reward", "no reward 'no_such_reward'"),
    ],
)
def test_a_reward_that_cannot_be_called_is_refused_with_a_remedy(name, text):
    with pytest.raises(ConfigError, match=text):
        load_stored_reward(name)


def test_an_argument_that_the_run_does_not_hold_is_refused_with_the_known_names():
    reward = load_stored_reward(f"{REWARDS}:of_item")
    with pytest.raises(ConfigError, match="needs gold.*completion.*--items"):
        require_arguments(reward, values_of({**RECORD, "metadata": None}, {}))


@pytest.mark.parametrize("returned", ["text", float("nan"), [1.0, 2.0], object()])
def test_a_result_that_is_no_reward_is_an_error_and_never_a_number(returned):
    reward = load_stored_reward(REWARDS)
    with pytest.raises(RolloutError):
        reward.score(returned)

"""Environments of the real package: calls, rewards of steps, mistakes and failures."""

from __future__ import annotations

import asyncio

import pytest

from atroposlib.adapters import aviary as adapter
from atroposlib.adapters.aviary import AviaryConfig
from atroposlib.envs.function_env.card import play
from atroposlib.errors import ConfigError

PACKAGE = "aviary"
SAFES = "tests.adapters.toys.aviary_tasks:Safes"
TASK = {"id": "safe", "place": 1}  # its code is 7


def turn(digit, name="turn"):
    return f'<tool_call>{{"name": "{name}", "arguments": {{"digit": {digit}}}}}</tool_call>'


async def score(replies, **settings):
    return await play(adapter.aviary, TASK, replies, **{"env_id": SAFES, **settings})


async def test_a_group_of_the_tiny_model_has_logprobs_and_its_source(sampled):
    short = {"max_tokens": 4, "max_turns": 2, "describe_tools": True}
    groups = await sampled(adapter.aviary, env_id=SAFES, **short)
    source = groups[0]["metadata"]["source"]
    assert source["env_id"] == SAFES and source["package"].startswith("fhaviary 0.37")
    assert source["task"] in (0, 1, 2)


async def test_rewards_of_the_steps_are_added_or_the_last_one_counts():
    reward, model = await score(["Hm.", turn(3), turn(7)])
    assert reward.metrics["return"] == sum(model.rewards.values()) == 0.75
    assert reward.metrics["turns"] == 3.0 and reward.metrics["truncated"] == 0.0
    said = [message["content"] for message in model.replies[-1].messages]
    assert (
        said[0] == "Open the safe."
        and said[2].startswith("No tool calls")
        and said[4] == "shut"
    )
    assert (await score([turn(3), turn(7)], reward="final"))[0].score == 1.0
    _, model = await score([turn(3), turn(7)], discount=0.5)
    assert model.rewards == {0: -0.25, 1: 0.5}


async def test_an_episode_that_is_cut_has_no_final_score_or_that_of_the_settings():
    for replies, limit in (([turn(1)] * 3, 16), ([turn(1)], 1)):
        cut = {"reward": "final", "max_turns": limit}
        reward, _ = await score(replies, **cut)
        assert reward.score is None and reward.metrics["truncated"] == 1.0
        assert (await score(replies, cut_reward=-1.0, **cut))[0].score == -1.0


async def test_a_call_that_fits_no_tool_is_told_and_not_run():
    wrong = [turn(1, "kick"), turn('"x"'), turn("true"), turn("1").replace("digit", "number")]
    reward, model = await score([*wrong, turn(1) + turn('"x"'), turn(7)])
    assert model.rewards == {5: 1.0} and reward.metrics["refused"] == 5.0
    told = [m["content"] for m in model.replies[-1].messages if m["role"] == "tool"]
    assert "no tool 'kick'" in told[0] and told[1] == told[2] == "error: digit is a integer"
    assert "missing arguments ['digit']" in told[3] and "not run" in told[4]


async def test_a_failure_of_the_environment_is_raised_and_never_a_score():
    with pytest.raises(RuntimeError, match="the dial fell off"):
        await score([turn(7)], env_kwargs={"broken": True})


async def test_rollouts_of_one_task_share_no_state():
    shared = "tests.adapters.toys.aviary_tasks:shared"
    runs = (score([turn(1), turn(7)], env_id=shared) for _ in range(4))
    assert [model.rewards for _, model in await asyncio.gather(*runs)] == [
        {0: -0.25, 1: 1.0}
    ] * 4


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("nothing", "Unknown environment"),
        ("gsm8k", "you need to install it"),
        ("dummy", "has no len"),
        ("no.module:Tasks", "No module named"),
        ("tests.adapters.toys.aviary_tasks:Nothing", "has no attribute"),
    ],
)
def test_a_data_set_that_cannot_be_used_ends_the_run_before_a_rollout(env_id, message):
    with pytest.raises(ConfigError, match=message):
        adapter.tasks(AviaryConfig(env_id=env_id))

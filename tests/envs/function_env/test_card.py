"""Rollouts of given replies, in place of a model."""

from __future__ import annotations

import json

import pytest

from atroposlib.envs.function_env import environment
from atroposlib.envs.function_env.card import Card, play
from atroposlib.errors import ConfigError

CALL = '<tool_call>{"name": "double", "arguments": {"n": 4}}</tool_call>'


def double(n: int) -> int:
    """Twice the number."""
    return 2 * n


@environment([{"id": "4"}], card=Card("arithmetic", "none", "MIT", lambda task: [CALL, "8"]))
async def doubling(task, model):
    return {"right": await model.use_tools("Double 4.", tools=[double]) == "8"}


@environment([{"id": "4"}], settings={"right": "8"})
async def completing(task, model, config):
    return await model.complete("4 + 4 = ") == config.right


@environment([{"id": "4"}])
async def an_agent(task, model):
    await model.endpoint()


async def test_gold_replies_call_tools_and_are_scored():
    reward, model = await play(doubling, {"id": "4"}, doubling.definition.card.gold({}))
    assert (reward.score, reward.metrics) == (1.0, {"right": 1.0})
    asked = model.replies[-1].messages
    assert [message["role"] for message in asked] == ["user", "assistant", "tool", "assistant"]
    assert json.loads(asked[2]["content"]) == 8


async def test_a_rollout_without_replies_gets_empty_ones():
    reward, model = await play(doubling, {"id": "4"}, [])
    assert reward.score == 0.0
    assert model.replies == [""]


async def test_settings_are_those_of_the_environment():
    assert (await play(completing, {"id": "4"}, "9", right="9"))[0].score == 1.0
    assert (await play(completing, {"id": "4"}, "9"))[0].score == 0.0


async def test_an_agent_with_a_client_is_refused():
    with pytest.raises(ConfigError, match="needs a server"):
        await play(an_agent, {"id": "4"}, "8")

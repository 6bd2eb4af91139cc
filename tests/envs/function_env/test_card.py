"""Rollouts of given replies, in place of a model."""

from __future__ import annotations

import json
import re

import pytest

from atroposlib.envs.function_env import environment
from atroposlib.envs.function_env.card import Card, play
from atroposlib.envs.function_env.data import item_of
from atroposlib.errors import ConfigError
from atroposlib.testing.tiny import ASCII_ALPHABET
from tests.envs.function_env.function_toys import made

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


WORDS = [{"id": word} for word in ("ant", "bee", "cat", "dog")]


@environment(
    WORDS, card=Card("text", "none", "MIT", lambda task: task["id"].upper()), group_size=2
)
async def shouting(task, model):
    system = {"role": "system", "content": "shout."}
    reply = await model.chat([system, {"role": "user", "content": task["id"]}], max_tokens=4)
    assert len(reply.messages) == 3  # the history is without examples
    return reply == task["id"].upper()


async def test_gold_replies_of_other_trained_tasks_stand_before_a_task(
    fake, inference_url, tmp_path
):
    env = made(shouting, inference_url, tmp_path, alphabet=ASCII_ALPHABET, gold_examples=1)
    await env.setup()
    await env.evaluate()
    held_out = [item["id"] for item in env.held_out]
    trained = [one["id"] for one in WORDS if one["id"] not in held_out]
    for name in trained:
        await env.collect_trajectories(item_of({"id": name}, 0))
    await env.close()
    for _, body in fake.requests:
        ids = body.get("prompt_token_ids") or body["prompt"]["prompt_token_ids"]
        text = env.tokenizer.decode(ids, skip_special_tokens=True)
        shout, shown, gold, asked = re.findall("shout.|[a-z]{3}|[A-Z]{3}", text)
        assert (shout, gold) == ("shout.", shown.upper())
        assert shown != asked and shown in trained


async def test_examples_need_a_card_and_enough_tasks(inference_url, tmp_path):
    with pytest.raises(ConfigError, match="gold_examples 4: there are 3 tasks"):
        await made(shouting, inference_url, tmp_path, gold_examples=4).setup()
    with pytest.raises(ConfigError, match="completing has no card="):
        await made(completing, inference_url, tmp_path, gold_examples=1).setup()

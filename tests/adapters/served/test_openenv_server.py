"""Our environments as a server of OpenEnv, with the client of the real package."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from atroposlib.adapters.openenv import openenv
from atroposlib.adapters.openenv_server import app_of
from atroposlib.cli.export.openenv import environment_to_serve
from atroposlib.envs.function_env.card import ScriptedSession
from atroposlib.errors import ConfigError
from tests.serving import served

PACKAGE = "openenv"
TURNS = Path(__file__).parents[1] / "toys" / "turns.py"


@pytest.fixture
def server():
    """The URL of a server of an environment: one of ``turns``, or any reference."""
    with ExitStack() as running:

        def start(name, *words, **settings):
            reference = f"{TURNS}:{name}" if name in TURNS.read_text() else name
            app = app_of(environment_to_serve(reference, words), **settings)
            return running.enter_context(served(app, ws="websockets-sansio"))

        yield start


def client(url):
    from openenv.core.generic_client import GenericEnvClient

    return GenericEnvClient(base_url=url)


async def played(url, seed, replies):
    """Observations and the total reward of an episode."""
    async with client(url) as env:
        results = [await env.reset(seed=seed)]
        for reply in replies:
            results.append(await env.step({"message": reply}))
            if results[-1].done:
                break
        return results


async def ours(reference, seed, replies, *words):
    """The reward of the same task and replies without a server."""
    env = environment_to_serve(reference, words)
    await env.setup()
    try:
        for _ in range(seed + 1):
            item = await env.get_next_item()
        reward, _ = await env.rollouts.given(item, ScriptedSession(list(replies)))
        return reward.score
    finally:
        await env.close()


async def test_turns_of_a_rollout_are_steps_and_rewards_are_added(server):
    first, second, third = await played(server("digits"), 5, ["3", "5"])
    assert first.observation["prompt"] == "Guess: 0 to 5." and first.reward is None
    assert second.observation["messages"] == [{"role": "user", "content": "No."}]
    assert not second.done and third.done and third.reward == 0.75


@pytest.mark.parametrize("name", ["letters", "tic_tac_toe", "calculator", "sql_queries"])
async def test_rewards_are_those_of_ours_for_the_same_replies(server, name):
    url, env = server(name), environment_to_serve(name)
    card = env.definition.card
    await env.setup()
    tasks = [(await env.get_next_item())["task"] for _ in range(3)]
    await env.close()
    for seed, task in enumerate(tasks):
        gold = card.gold(task)
        gold = [gold] if isinstance(gold, str) else list(gold)
        for replies in (gold, ["wrong"] * 40):
            results = await played(url, seed, replies)
            assert results[-1].done
            assert results[-1].reward == await ours(name, seed, replies)


async def test_a_tool_is_described_and_called_by_the_text_of_the_reply(server):
    url, ask = (
        server("adds"),
        '<tool_call>{"name": "add", "arguments": {"a": 4, "b": 1}}</tool_call>',
    )
    first, second, third = await played(url, 4, [ask, "5"])
    assert first.observation["tools"][0]["function"]["name"] == "add"
    [result] = second.observation["messages"]
    assert result["role"] == "tool" and result["content"] == "5"
    assert third.reward == 1.0


async def test_a_second_conversation_is_shown_as_a_whole(server):
    _, second, third = await played(server("rewritten"), 0, ["mine", "yes"])
    assert second.observation["prompt"] == "Better than mine?" and third.reward == 1.0


async def test_sessions_at_the_same_time_are_apart(server):
    url = server("digits")
    runs = (played(url, seed, ["0", "1", str(seed)]) for seed in range(2, 8))
    assert [run[-1].reward for run in await asyncio.gather(*runs)] == [0.5] * 6


async def test_a_failure_is_an_error_and_no_score_is_no_reward(server):
    url = server("moody")
    async with client(url) as env:
        with pytest.raises(Exception, match="no episode: reset"):
            await env.step({"message": "early"})
        await env.reset(seed=1, episode_id="mine", other="left aside")
        with pytest.raises(Exception, match="the checker fell over"):
            await env.step({"message": "fail"})
        with pytest.raises(Exception, match="the episode is over: reset"):
            await env.step({"message": "late"})
        assert await env.state() == {"episode_id": "mine", "step_count": 1}
        await env.reset()
        with pytest.raises(Exception, match="Invalid message"):
            await env.step({"wrong": 1})
        ended = await env.step({"message": "hm"})
        assert ended.done and ended.reward is None


async def test_frames_that_are_no_messages_get_an_error_and_the_session_stays(server):
    from websockets.asyncio.client import connect

    url = server("digits").replace("http", "ws") + "/ws"
    async with connect(url, proxy=None) as socket:
        for frame, code in (
            ("{", "INVALID_JSON"),
            ("[]", "UNKNOWN_TYPE"),
            ('{"type": "dance"}', "UNKNOWN_TYPE"),
            ('{"type": "state", "data": {}}', "VALIDATION_ERROR"),
            ('{"type": "reset", "data": {"seed": "x"}}', "VALIDATION_ERROR"),
        ):
            await socket.send(frame)
            answer = json.loads(await socket.recv())
            assert (answer["type"], answer["data"]["code"]) == ("error", code)
        await socket.send('{"type": "close"}')
        await socket.wait_closed()
        assert socket.close_code == 1000


async def test_a_full_server_refuses_and_has_a_place_again_after_a_session(server):
    url = server("digits", places=1)
    async with client(url) as env:
        await env.reset(seed=1)
        with pytest.raises(Exception, match="all 1 sessions are taken"):
            await played(url, 1, ["1"])
    assert (await played(url, 1, ["1"]))[-1].reward == 1.0


async def test_the_adapter_of_openenv_plays_it(server, sampled):
    url = server("digits").replace("http", "ws") + "/ws"
    groups = await sampled(openenv, env_id=url, max_tokens=4, max_turns=4)
    source = groups[0]["metadata"]["source"]
    assert source["package"].startswith("digits atroposlib")


def test_a_class_is_refused():
    with pytest.raises(ConfigError, match="only environments of @environment"):
        environment_to_serve("math_server_zero")

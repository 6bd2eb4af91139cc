"""Environments on a server of the real package: sessions, actions, rewards and failures."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from atroposlib.adapters import openenv as adapter
from atroposlib.adapters.openenv import (
    Contract,
    OpenEnvConfig,
    action_in,
    address,
    observation_text,
)
from atroposlib.envs.function_env.card import play
from atroposlib.errors import ConfigError
from atroposlib.processes import free_port
from tests.serving import served

PACKAGE = "openenv"


@pytest.fixture
def server():
    """The URL of a server of one of the environments of ``openenv_server``."""
    with ExitStack() as running:

        def start(name, **settings):
            from tests.adapters.toys import openenv_server as envs

            action = envs.Add if name == "Sums" else envs.Guess
            app = envs.app_of(getattr(envs, name), action, **settings)
            return (
                running.enter_context(served(app, ws="websockets-sansio")).replace(
                    "http", "ws"
                )
                + "/ws"
            )

        yield start


def task_of(seed=7):
    return {"id": str(seed), "seed": seed}


async def score(url, replies, seed=7, **settings):
    return await play(adapter.openenv, task_of(seed), replies, env_id=url, **settings)


async def test_a_group_of_the_tiny_model_has_logprobs_and_its_source(server, sampled):
    url = server("Digits")
    groups = await sampled(adapter.openenv, env_id=url, max_tokens=4, max_turns=2)
    source = groups[0]["metadata"]["source"]
    assert source["env_id"] == url and source["package"]


async def test_rewards_of_the_turns_are_added_or_the_last_one_counts(server):
    url = server("Digits")
    reward, model = await score(url, ["3", "7"])
    assert model.replies[0].messages[0]["content"] == "Guess a digit."
    assert reward.metrics == {"turns": 2.0, "refused": 0.0, "return": 0.75, "truncated": 0.0}
    reward, _ = await score(url, ["3", "7"], reward="final")
    assert reward.score == 1.0
    reward, _ = await score(url, ["3", "4", "5"], reward="final")
    assert reward.score == -0.25


async def test_an_episode_cut_by_the_limit_has_no_score_or_that_of_the_settings(server):
    url = server("Digits")
    cut = {"max_turns": 1, "reward": "final"}
    reward, _ = await score(url, ["3"], **cut)
    assert reward.score is None and reward.metrics["truncated"] == 1.0
    assert (await score(url, ["3"], cut_reward=-1.0, **cut))[0].score == -1.0


async def test_fields_of_a_reset_reach_the_environment(server):
    _, model = await score(server("Digits"), ["7"], env_kwargs={"mark": "!"})
    assert model.replies[0].messages[0]["content"] == "Guess a digit!."


async def test_an_action_of_several_fields_is_json_in_tags_and_a_wrong_one_is_told(server):
    url = server("Sums")
    wrong, right = '<action>{"left": "x"}</action>', '<action>{"left": 3, "right": 4}</action>'
    reward, model = await score(url, ["seven", wrong, right])
    assert reward.metrics["refused"] == 2.0 and reward.metrics["return"] == 1.0
    opening, _, _, second, *_ = model.replies[-1].messages
    assert "'left'" in opening["content"] and "no <action>" in second["content"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("Broken", "EXECUTION_ERROR: .*fell over"), ("Silent", "without any reward")],
)
async def test_a_failure_of_the_environment_is_raised_and_never_a_score(server, name, message):
    with pytest.raises(Exception, match=message):
        await score(server(name), ["7"])


async def test_a_full_server_is_waited_for_and_a_session_ends_with_its_rollout(server):
    url = server("Digits", places=1)
    config = OpenEnvConfig(env_id=url)
    held, _ = await adapter.opened_aside(config, 1)
    waiting = asyncio.ensure_future(score(url, ["7"]))
    given_up = asyncio.ensure_future(adapter.opened_aside(config, 2))
    with pytest.raises(Exception, match="CAPACITY_REACHED"):
        await score(url, ["7"], server_timeout=0.1)
    given_up.cancel()  # what it opens later is closed again
    await asyncio.to_thread(held.close)
    reward, _ = await waiting
    assert reward.metrics["return"] == 1.0
    assert (await score(url, ["7"]))[0].metrics["return"] == 1.0


def test_no_server_and_a_wrong_address_end_the_run_before_a_rollout():
    url = f"ws://127.0.0.1:{free_port()}/ws"
    with pytest.raises(ConfigError, match="no OpenEnv server"):
        adapter.held_out(OpenEnvConfig(env_id=url, server_timeout=5))
    with pytest.raises(ConfigError, match="write it as ws://host:port/ws"):
        address("localhost", "ws", "/ws")
    assert address("https://h.io/env/", "ws", "/ws") == "wss://h.io/env/ws"


def test_observations_and_actions_by_their_fields():
    assert observation_text({"text": "hi", "reward": None, "done": False}) == "hi"
    assert observation_text({"a": 1, "b": "x"}) == '{"a": 1, "b": "x"}'
    one = Contract("n", {"properties": {"message": {"type": "string"}, "metadata": {}}})
    two = Contract("n", {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}})
    assert action_in("go <action>", one) == {"message": "go <action>"}
    assert action_in('<action>{"a": 1}</action>', two) == {"a": 1}
    assert action_in("<action>[1]</action>", two) is action_in("", two) is None

"""Gymnasium games as text: observations, actions and returns."""

from __future__ import annotations

import asyncio
import threading

import pytest

from atroposlib.adapters.gymnasium import (
    Game,
    GymnasiumConfig,
    action_names,
    as_text,
    chosen_action,
    gymnasium,
    training,
)
from atroposlib.envs.function_env.card import play
from atroposlib.envs.rollout.causes import OnlyFailures
from atroposlib.errors import ConfigError
from atroposlib.testing.fake_inference import FakeInference

PACKAGE = "gymnasium"


def test_terminal_colours_become_words():
    assert as_text("\n\x1b[41mS\x1b[0mFFF\n") == "[red:S]FFF"
    assert as_text("|\x1b[34;1mB\x1b[0m: |") == "|[blue:B]: |"
    assert as_text("\x1b[99mx") == "[99:x]"
    assert as_text("plain") == "plain"


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("<action>left</action>", 0),
        ("<action>up</action> no, <ACTION> Pick  Up </ACTION>", 2),
        ("<action>1</action>", 1),
        ("<action>3</action>", None),
        ("<action></action>", None),
        ("left", None),
        ("<action>-1</action>", None),
    ],
)
def test_the_last_tagged_action_is_parsed_by_name_or_number(reply, action):
    assert chosen_action(reply, ["left", "up", "pick up"]) == action


def test_action_names_are_built_in_configured_or_numbers():
    assert action_names("FrozenLake-v1", 4, None) == ["left", "down", "right", "up"]
    assert action_names("ns/Other-v0", 2, None) == ["0", "1"]
    assert action_names("Other-v0", 2, ["no", "yes"]) == ["no", "yes"]
    with pytest.raises(ConfigError, match="4 actions, not 1"):
        action_names("FrozenLake-v1", 4, ["go"])


def test_a_module_of_ones_own_registers_its_environment(tmp_path, monkeypatch):
    source = (
        "import gymnasium as gym\n"
        "gym.register('Own-v0', 'gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv')\n"
    )
    (tmp_path / "my_games.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    assert "S" in Game(GymnasiumConfig(env_id="my_games:Own-v0")).start(0)
    with pytest.raises(ConfigError, match="no_such_games"):
        Game(GymnasiumConfig(env_id="no_such_games:Own-v0"))


@pytest.mark.parametrize(
    ("env_id", "says"),
    [("Taxi-v3", "Taxi-v4"), ("Nope-v0", "Nope"), ("Pendulum-v1", "numbered")],
)
def test_an_unsupported_gymnasium_environment_raises_with_the_reason(env_id, says):
    with pytest.raises(ConfigError, match=rf"(?s)--env\.env_id {env_id}.*{says}"):
        Game(GymnasiumConfig(env_id=env_id))


def test_the_taxi_position_matches_gymnasium():
    game = Game(GymnasiumConfig(env_id="Taxi-v4"))
    before = game.start(0)
    after, reward, *over = game.step(game.names.index("north"))
    rows = [text.index("[yellow:") for text in (before, after)]
    assert rows[1] < rows[0] and (reward, over) == (-1.0, [False, False])


def test_a_game_without_an_ansi_mode_shows_its_observations(recwarn):
    game = Game(GymnasiumConfig(env_id="Blackjack-v1"))
    assert game.start(3).startswith("Observation: (")
    assert game.names == ["stick", "hit"] and not recwarn.list


FIRM = {"env_id": "FrozenLake-v1", "env_kwargs": {"is_slippery": False}}
WAY = ["down", "down", "right", "right", "down", "right"]  # to the goal of the standard map


async def test_a_game_is_played_to_its_end_and_every_turn_is_trained(
    make_env, groups_made, trained_text
):
    def reply(prompt, i):
        return f"<action>{WAY[prompt.count('<|assistant|>') - 1]}</action>"

    with FakeInference(reply=reply).running() as url:
        env = make_env(gymnasium, url, group_size=2, discount=0.5, **FIRM)
        (group,) = await groups_made(env, 1)
    assert group["scores"] == [0.5**5, 0.5**5]
    whole = {"return": 1.0, "turns": 6.0, "illegal": 0.0, "truncated": 0.0, "reward": 0.5**5}
    assert group["metadata"]["metrics"] == whole
    source = group["metadata"]["source"]
    assert source["env_id"] == "FrozenLake-v1" and source["package"].startswith("gymnasium 1.")
    expected = "".join(f"<action>{step}</action><|end|>" for step in WAY)
    assert trained_text(env, group, 0) == expected
    assert "[red:S]FFF" in group["messages"][0][1]["content"]


@pytest.mark.parametrize(
    ("rule", "turns", "return_"),
    [("end", 1.0, -0.5), ("ask_again", 3.0, -1.5), ("noop", 2.0, -1.0)],
)
async def test_a_reply_without_an_action_costs_the_configured_penalty(
    make_env, groups_made, rule, turns, return_
):
    with FakeInference(reply=lambda prompt, i: "hm").running() as url:
        env = make_env(
            gymnasium,
            url,
            group_size=1,
            max_turns=3 if rule == "ask_again" else 9,
            illegal_action=rule,
            illegal_reward=-0.5,
            noop_action=1,  # down, down and down again: into no hole before the edge
            discount=1.0,
            env_id="FrozenLake-v1",
            env_kwargs={"is_slippery": False, "desc": ["SG", "FF", "HF"]},
        )
        (group,) = await groups_made(env, 1)
    assert group["scores"] == [return_]
    assert group["metadata"]["metrics"]["turns"] == turns
    told = [m["content"].count("That named no action") for m in group["messages"][0]]
    assert max(told) == (0 if rule == "end" else 1)


@pytest.mark.parametrize("limit", [{"max_turns": 2}, {"max_episode_steps": 2}])
async def test_a_truncated_episode_is_not_scored_as_an_end(make_env, groups_made, limit):
    kwargs = {**FIRM["env_kwargs"], **{k: limit[k] for k in limit if k != "max_turns"}}
    settings = {"group_size": 1, "reward": "final", "env_kwargs": kwargs}
    settings |= {k: limit[k] for k in limit if k == "max_turns"}
    with FakeInference(reply=lambda prompt, i: "<action>left</action>").running() as url:
        env = make_env(gymnasium, url, cut_reward=-0.25, **settings)
        (group,) = await groups_made(env, 1)
        assert group["scores"] == [-0.25]
        assert group["metadata"]["metrics"]["truncated"] == 1.0
        with pytest.raises(OnlyFailures, match="None"):
            await make_env(gymnasium, url, **settings).process_manager()


async def test_evaluated_episodes_are_not_trained_on(make_env, evaluated):
    with FakeInference(reply=lambda prompt, i: "<action>right</action>").running() as url:
        env = make_env(gymnasium, url, eval_items=3, max_turns=4, **FIRM)
        metrics, samples = await evaluated(env)
    assert [sample["task"]["seed"] for sample in samples] == [0, 1, 2]
    assert (await env.get_next_item())["task"]["seed"] >= 1_000_000
    assert (metrics["reward"], metrics["turns"], metrics["truncated"]) == (0.0, 4.0, 1.0)


async def test_an_episode_ends_before_it_exceeds_the_token_limit(make_env, groups_made):
    with FakeInference(reply=lambda prompt, i: "<action>up</action>").running() as url:
        env = make_env(gymnasium, url, group_size=1, max_token_length=800, **FIRM)
        (group,) = await groups_made(env, 1)
        assert len(group["tokens"][0]) <= 800
        assert group["metadata"]["metrics"]["turns"] > 1
        small = make_env(gymnasium, url, max_token_length=64, **FIRM)
        with pytest.raises(OnlyFailures, match="no room for a turn"):
            await small.process_manager()


async def test_a_cancelled_rollout_closes_its_game(make_env, monkeypatch):
    asked, answered, closed = threading.Event(), threading.Event(), []

    def reply(prompt, i):
        asked.set()
        answered.wait(60)
        return "late"

    def noted(self, config, make=Game.__init__):
        make(self, config)
        self.env.close = lambda: closed.append(1)

    monkeypatch.setattr(Game, "__init__", noted)
    with FakeInference(reply=reply).running() as url:
        env = make_env(gymnasium, url, **FIRM)
        await env.setup()
        closed.clear()
        rollout = asyncio.ensure_future(env.rollouts.train(await env.get_next_item()))
        await asyncio.to_thread(asked.wait, 60)
        rollout.cancel()
        await asyncio.gather(rollout, return_exceptions=True)
        answered.set()
        await env.close()
    assert closed == [1]


@pytest.mark.slow
async def test_a_tiny_model_plays_a_group(sampled):
    (group,) = await sampled(gymnasium, max_tokens=16, **FIRM)
    assert group["scores"] == [-1.0] * 4  # random letters name no action


async def test_a_game_that_fails_is_raised_and_never_a_score(monkeypatch):
    def broken(self, action):
        raise OSError("the display is gone")

    monkeypatch.setattr("gymnasium.envs.toy_text.frozen_lake.FrozenLakeEnv.step", broken)
    config = GymnasiumConfig(**FIRM)
    with pytest.raises(OSError, match="the display is gone"):
        await play(gymnasium, next(training(config)), ["<action>left</action>"], **FIRM)

"""Gymnasium games as text: observations, actions and returns."""

from __future__ import annotations

import pytest

from atroposlib.environments.common.text_game import Game, action_names, as_text, chosen_action
from atroposlib.environments.gymnasium_server import GymnasiumEnv, Reward
from atroposlib.environments.gymnasium_server import score as game_score
from atroposlib.errors import ConfigError
from atroposlib.testing.fake_inference import FakeInference


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


def test_returns_are_discounted_or_the_last_reward():
    assert game_score([0.0, 0.0, 1.0], Reward.DISCOUNTED, 0.5) == 0.25
    assert game_score([-1.0, -1.0], Reward.DISCOUNTED, 1.0) == -2.0
    assert game_score([-1.0, -1.0, 20.0], Reward.FINAL, 0.5) == 20.0


@pytest.mark.parametrize(
    ("env_id", "says"),
    [("Taxi-v3", "Taxi-v4"), ("Nope-v0", "Nope"), ("Pendulum-v1", "numbered")],
)
def test_an_unsupported_gymnasium_environment_raises_with_the_reason(env_id, says):
    pytest.importorskip("gymnasium")
    with pytest.raises(ConfigError, match=rf"(?s)--env\.env_id {env_id}.*{says}"):
        Game(env_id, {}, None)


def test_the_taxi_position_matches_gymnasium():
    pytest.importorskip("gymnasium")
    game = Game("Taxi-v4", {}, None)
    before = game.start(0)
    after, reward, over = game.step(game.names.index("north"))
    rows = [text.index("[yellow:") for text in (before, after)]
    assert rows[1] < rows[0] and (reward, over) == (-1.0, False)


FIRM = {"env_id": "FrozenLake-v1", "env_kwargs": {"is_slippery": False}}
WAY = ["down", "down", "right", "right", "down", "right"]  # to the goal of the standard map


@pytest.fixture
def gymnasium():
    return pytest.importorskip("gymnasium")


async def test_a_game_is_played_to_its_end_and_every_turn_is_trained(
    gymnasium, make_env, groups_made, trained_text
):
    def reply(prompt, i):
        return f"<action>{WAY[prompt.count('<|assistant|>') - 1]}</action>"

    with FakeInference(reply=reply).running() as url:
        env = make_env(GymnasiumEnv, url, group_size=2, discount=0.5, **FIRM)
        (group,) = await groups_made(env, 1)
    assert group["scores"] == [0.5**5, 0.5**5]
    assert group["metadata"]["metrics"] == {"return": 1.0, "turns": 6.0, "illegal": 0.0}
    expected = "".join(f"<action>{step}</action><|end|>" for step in WAY)
    assert trained_text(env, group, 0) == expected
    assert "[red:S]FFF" in group["messages"][0][1]["content"]


@pytest.mark.parametrize(("rule", "turns"), [("end", 1.0), ("ask_again", 3.0)])
async def test_a_reply_without_an_action_costs_the_configured_penalty(
    gymnasium, make_env, groups_made, rule, turns
):
    with FakeInference(reply=lambda prompt, i: "hm").running() as url:
        env = make_env(
            GymnasiumEnv,
            url,
            group_size=1,
            max_turns=3,
            illegal_action=rule,
            illegal_reward=-0.5,
            discount=1.0,
            **FIRM,
        )
        (group,) = await groups_made(env, 1)
    assert group["scores"] == [-0.5 * turns]
    assert group["metadata"]["metrics"]["turns"] == turns
    told = [m["content"].count("That named no action") for m in group["messages"][0]]
    assert max(told) == (1 if rule == "ask_again" else 0)


async def test_evaluated_episodes_are_not_trained_on(gymnasium, make_env, evaluated):
    with FakeInference(reply=lambda prompt, i: "<action>right</action>").running() as url:
        env = make_env(GymnasiumEnv, url, eval_episodes=3, max_turns=4, **FIRM)
        metrics, samples = await evaluated(env)
        env.iter = 0
        trained = [(await env.get_next_item())["seed"] for _ in range(3)]
    assert [sample["seed"] for sample in samples] == [0, 1, 2]
    assert min(trained) >= 1_000_000
    assert metrics == {"score": 0.0, "return": 0.0, "turns": 4.0, "illegal": 0.0}


async def test_an_episode_ends_before_it_exceeds_the_token_limit(
    gymnasium, make_env, groups_made
):
    with FakeInference(reply=lambda prompt, i: "<action>up</action>").running() as url:
        env = make_env(GymnasiumEnv, url, group_size=1, max_token_length=600, **FIRM)
        (group,) = await groups_made(env, 1)
    assert len(group["tokens"][0]) <= 600
    assert group["metadata"]["metrics"]["turns"] > 1
    small = make_env(GymnasiumEnv, "http://127.0.0.1:9", max_token_length=64, **FIRM)
    await small.setup()
    with pytest.raises(ConfigError, match="no room for a turn"):
        await small.collect_trajectory(await small.get_next_item())
    await small.close()

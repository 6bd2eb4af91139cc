"""Turns of a game: episodes, room for a turn, notes, rewards and the score."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace

import pytest

from atroposlib.adapters import RewardedConfig, Score, training_episodes
from atroposlib.adapters.turns import Turns, fits, require_turn
from atroposlib.envs.function_env.card import ScriptedSession
from atroposlib.envs.function_env.rollout_model import Model
from atroposlib.errors import ConfigError


class Config(RewardedConfig):
    env_id: str = "toy"


def model_of(*replies):
    return Model(ScriptedSession(list(replies)), "eval", 0.0, 8, open_endpoint=None)


def test_episodes_of_two_seeds_are_different_and_none_is_evaluated():
    games = (SimpleNamespace(env_id="g-v0", seed=seed) for seed in (0, 1))
    one, two = (list(islice(training_episodes(game, "g 1.0"), 3)) for game in games)
    assert one[1] == {
        "id": "g-v0/1000001",
        "seed": 1_000_001,
        "source": {"package": "g 1.0", "env_id": "g-v0", "seed": 1_000_001},
    }
    assert {t["id"] for t in one}.isdisjoint(t["id"] for t in two)


def test_a_turn_fits_up_to_the_token_limit():
    config = SimpleNamespace(max_tokens=10, max_token_length=100)
    session = SimpleNamespace(tokenizer=SimpleNamespace(encode=str.split))
    model = SimpleNamespace(session=session, row_tokens=50)
    assert fits(model, "a b c d e f g h", config)  # 50 + 8 + 32 + 10
    assert not fits(model, "a b c d e f g h i", config)
    assert fits(model, "a b c d e f g h i", config, used=40)
    model.session = None  # a server without a tokenizer here
    assert fits(model, "x" * 32, config) and not fits(model, "x" * 36, config)


def test_a_game_without_a_turn_is_refused():
    config = Config(max_token_length=64)
    require_turn(1, config)
    with pytest.raises(ConfigError, match="--env.max_token_length 64 has no room for a turn"):
        require_turn(0, config)


async def test_a_note_stands_before_one_state_and_the_turns_end_at_the_limit():
    turns = Turns(model_of("a", "b", "c"), Config(max_turns=3), "Play.")
    assert await turns.ask("one") == "a"
    turns.note = "No. "
    assert await turns.ask("two") == "b"
    assert await turns.ask("three") == "c"
    assert await turns.ask("four") is None
    texts = [message["content"] for message in turns.messages]
    assert texts == ["Play.", "one", "a", "No. two", "b", "three", "c"]


async def test_the_first_turn_counts_the_system_message_and_the_tools():
    tools = [{"type": "function", "function": {"name": "x" * 80}}]
    config = Config(max_tokens=8, max_token_length=48)
    assert await Turns(model_of("a"), config, "x" * 40).ask("x" * 40) is None
    assert await Turns(model_of("a"), config, tools=tools).ask("x") is None
    assert await Turns(model_of("a"), config).ask("x") == "a"


@pytest.mark.parametrize(
    ("rule", "replies", "ended_score", "cut_score"),
    [(Score.DISCOUNTED, {0: 1.0, 1: 1.0}, 0.0, 0.0), (Score.FINAL, {}, 2.0, -1.0)],
)
async def test_rewards_are_discounted_or_the_last_counts_if_the_game_ended(
    rule, replies, ended_score, cut_score
):
    model = model_of("a", "b")
    turns = Turns(model, Config(reward=rule, discount=0.5, cut_reward=-1.0))
    for reward in (1.0, 2.0):
        await turns.ask("state")
        turns.reward(reward)
    assert model.rewards == replies
    assert (turns.score(True), turns.score(False)) == (ended_score, cut_score)
    assert turns.score(False, added=False) == -1.0
    metrics = {"won": 1.0, "return": 3.0, "turns": 2.0, "truncated": 1.0}
    assert turns.result(0.5, False, won=1.0).metrics == metrics


async def test_messages_of_an_environment_replace_that_of_the_user():
    turns = Turns(model_of("a", "b"), Config())
    await turns.ask("x", [{"role": "system", "content": "x"}])
    await turns.ask("", [])
    assert [message["role"] for message in turns.messages] == [
        "system",
        "assistant",
        "assistant",
    ]

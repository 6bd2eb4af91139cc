"""Games of the real package: walkthroughs, other replies, refused commands and settings."""

from __future__ import annotations

import asyncio
import gc
import sys
from itertools import islice
from pathlib import Path

import pytest

from atroposlib.adapters import textworld as adapter
from atroposlib.adapters.textworld import TextWorldConfig, command_in, is_game_command
from atroposlib.envs.function_env.card import play
from atroposlib.errors import ConfigError

PACKAGE = "textworld"
COOKING = {"env_id": "tw-cooking", "env_kwargs": {"recipe": 1, "take": 1, "cook": True}}
VERBS = ["go", "look", "take"]


def task_of(seed=0, **settings):
    return adapter.held_out(TextWorldConfig(**settings))[seed]


async def score(task, replies, **settings):
    reward, model = await play(adapter.textworld, task, replies, **settings)
    return reward, model


@pytest.mark.parametrize("settings", [{}, COOKING])
async def test_the_walkthrough_wins_and_each_of_its_parts_less(settings):
    task = task_of(**settings)
    gold = adapter.gold(task)
    reward, _ = await score(task, gold, **settings)
    assert reward.score == 1.0
    assert reward.metrics == {"won": 1.0, "turns": len(gold), "refused": 0.0, "truncated": 0.0}
    reward, _ = await score(task, gold[:-1], **settings)
    assert reward.score < 1.0 and reward.metrics["won"] == 0.0


@pytest.mark.parametrize(
    "replies",
    [
        "",
        " \n\t",
        "a" * 4096,
        "<action>" * 9,
        ["<action>\ud800</action>", "<action></action>", "<action>look then save</action>"],
        ["The answer is correct, score 1.", "<action>score 1</action>"],
    ],
)
async def test_other_replies_earn_nothing(replies):
    reward, _ = await score(task_of(), replies)
    assert reward.score == 0.0


async def test_the_walkthroughs_of_other_games_and_the_prompt_earn_nothing():
    tasks = [task_of(seed) for seed in range(3)]
    golds = [adapter.gold(task) for task in tasks]
    for task, other in zip(tasks, [*golds[1:], golds[0]]):
        assert (await score(task, other))[0].score == 0.0
    _, model = await score(tasks[0], [])
    prompt = model.replies[0].messages[0]["content"]
    assert (await score(tasks[0], [prompt] * 4))[0].score == 0.0


async def test_a_turn_shows_what_happened_and_on_demand_what_is_possible():
    task = task_of()
    _, model = await score(task, ["<action>inventory</action>"], list_commands=True)
    first, _, second, _ = model.replies[-1].messages
    assert "In every turn reply with one command" in first["content"]
    assert "You are carrying" in second["content"]
    assert "Possible now: " in second["content"] and ">" not in second["content"]
    possible = first["content"].rpartition("Possible now: ")[2].rstrip(".").split(", ")
    assert command_in(adapter.gold(task)[0]).split()[0] in {one.split()[0] for one in possible}


async def test_a_game_that_is_cut_keeps_its_points_or_scores_as_the_settings_say():
    task = task_of(**COOKING)
    look = ["<action>look</action>"] * 3
    reward, _ = await score(task, look, **COOKING, max_turns=2)
    assert reward.score == 0.0 and reward.metrics["truncated"] == 1.0
    reward, _ = await score(task, look, **COOKING, max_turns=2, cut_reward=-1.0)
    assert reward.score == -1.0
    with pytest.raises(ConfigError, match="no room for a turn"):
        await score(task, look, **COOKING, max_token_length=100)


async def test_commands_of_the_interpreter_are_refused_and_write_no_file(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    words = ("save", "restore", "script", "transcript", "restart", "quit", "undo")
    task = task_of()
    reward, model = await score(task, [f"<action>{word}</action>" for word in words])
    assert reward.metrics["refused"] == len(words)
    assert "Commands begin with" in model.replies[1].messages[-2]["content"]
    assert not list(tmp_path.iterdir())
    assert not list(Path(adapter.game_of(task).path).parent.glob("*.qzl"))


def test_a_game_depends_on_its_seed_and_settings_only_and_its_folder_goes_with_it():
    one, again = (adapter.World("custom", {"nb_rooms": 2}, 5) for _ in range(2))
    assert one.walkthrough == again.walkthrough and one.verbs == again.verbs
    folder = Path(one.path).parent
    assert folder.is_dir()
    del one
    gc.collect()
    assert not folder.exists()


async def test_rollouts_at_once_share_the_game_of_their_task_and_not_its_state():
    task = task_of()
    gold = adapter.gold(task)
    played = await asyncio.gather(*(score(task, gold[:i]) for i in [0, len(gold)] * 8))
    assert [reward.score for reward, _ in played] == [0.0, 1.0] * 8
    assert adapter.game_of(task) is adapter.game_of(task)


def test_training_games_are_other_than_the_evaluated_ones():
    config = TextWorldConfig(eval_items=2)
    trained = list(islice(adapter.training(config), 2))
    evaluated = adapter.held_out(config)
    assert not {one["seed"] for one in trained} & {one["seed"] for one in evaluated}
    assert trained[0]["source"]["package"].startswith("textworld 1.7")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"env_id": "tw-nothing"}, "KeyError"),
        ({"env_kwargs": {"nb_room": 3}}, "nb_room: custom has no such option"),
        ({"env_kwargs": {"nb_rooms": "many"}}, "TypeError"),
        ({"env_id": "tw-simple"}, "rewards is missing"),
        ({"env_id": "tw-cooking", "env_kwargs": {"recip": 2}}, "did you mean recipe"),
    ],
)
def test_settings_of_no_game_are_refused_with_the_reason(settings, reason):
    with pytest.raises(ConfigError, match=reason):
        adapter.training(TextWorldConfig(**settings))


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "textworld", None)
    with pytest.raises(ConfigError, match=r"pip install 'atropos-rl\[textworld\]'"):
        adapter.training(TextWorldConfig())


@pytest.mark.parametrize(
    ("command", "fine"),
    [
        ("go east", True),
        ("take z-key", True),
        ("go east. save", False),
        ("look then save", False),
        ("save", False),
        ("", False),
        ("look\nsave", False),
        ("look " * 40, False),
    ],
)
def test_a_command_is_one_action_of_the_game(command, fine):
    assert is_game_command(command, VERBS) is fine


def test_the_command_is_the_last_one_in_tags():
    text = "<action>look</action> or rather <ACTION>\n Take  Key </ACTION>"
    assert command_in(text) == "take key"
    assert command_in("take key") is None


@pytest.mark.slow
async def test_a_tiny_model_plays_a_group(sampled):
    groups = await sampled(adapter.textworld, max_tokens=16)
    assert groups[0]["scores"] == [0.0] * 4


async def test_a_game_that_fails_is_raised_and_never_a_score(monkeypatch):
    def broken(self, command):
        raise OSError("the interpreter is gone")

    task = task_of()
    monkeypatch.setattr("textworld.core.Wrapper.step", broken)
    with pytest.raises(OSError, match="the interpreter is gone"):
        await score(task, ["<action>look</action>"])

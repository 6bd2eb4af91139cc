"""Text adventures of TextWorld: worlds made from a seed, played by typed commands.

    python -m atroposlib.adapters.textworld serve --env.env_kwargs '{"nb_rooms": 5}'
    python -m atroposlib.adapters.textworld process --env.env_id tw-cooking

The score is the share of the game's points. Needs textworld: pip install 'atropos-rl[textworld]'.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import tempfile
import threading
import warnings
import weakref
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import Field

from atroposlib.adapters import (
    ACTION,
    EpisodeConfig,
    convert_errors,
    held_out_episodes,
    import_package,
    training_episodes,
)
from atroposlib.adapters.turns import Turns, require_turn
from atroposlib.envs.function_env import Model, Reward, environment
from atroposlib.envs.function_env.card import Card
from atroposlib.errors import ConfigError
from atroposlib.settings.sentences import did_you_mean

CUSTOM = "custom"
WORLD = {"nb_rooms": 3, "nb_objects": 5, "quest_length": 3}  # defaults of custom
MAX_GAMES = 32  # games kept, so that a group makes its game once
MAX_COMMAND_CHARS = 100
PROMPT = (
    "You play a text adventure. {objective}\n\n{description}\n\nIn every turn reply with one "
    "command in tags, such as <action>look</action>. Commands begin with: {verbs}."
)
REFUSED = "That is no command. Commands begin with: {verbs}."
REFUSALS = (ValueError, TypeError, KeyError, AssertionError, AttributeError)
_COMMAND = re.compile(r"[a-z0-9' -]+")
_STATUS = re.compile(r"\n>\s*(-= .* =-\S*)?\s*\Z")  # line of the interpreter after each text
_LOCK = threading.Lock()  # the package has global random numbers and a single parser


class TextWorldConfig(EpisodeConfig):
    """Settings of the game."""

    env_id: str = Field(
        default=CUSTOM, description="custom, or a challenge of the package such as tw-cooking"
    )
    env_kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="nb_rooms, nb_objects, quest_length ... of custom; options of the challenge",
    )
    cut_reward: float | None = Field(
        default=None, description="score of an episode cut by a limit; None: its points so far"
    )
    max_turns: int = Field(default=30, ge=1, description="most turns of an episode")
    list_commands: bool = Field(
        default=False, description="show the commands that are possible in each turn"
    )


class World:
    """A game made and compiled into a folder, which is deleted with the object."""

    def __init__(self, env_id: str, kwargs: dict[str, Any], seed: int) -> None:
        textworld = _package()
        folder = tempfile.mkdtemp(prefix="atropos-textworld-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        options = textworld.GameOptions()
        options.seeds, options.path = seed, str(Path(folder) / "game.z8")
        if env_id == CUSTOM:
            for key, value in {**WORLD, **kwargs}.items():
                part = options if key in dir(options) else options.grammar
                if key not in dir(part):
                    raise KeyError(f"{key}: custom has no such option")
                setattr(part, key, value)
            game = textworld.generator.make_game(options)
        else:
            challenges = import_module("textworld.challenges").CHALLENGES
            _, make, add_arguments = challenges[env_id]
            game = make(_settings(add_arguments, kwargs), options)
        self.path = textworld.generator.compile_game(game, options)
        self.walkthrough = list(game.metadata["walkthrough"])
        self.verbs = sorted({verb.split()[0] for verb in game.verbs})

    def start(self) -> tuple[Any, Any]:
        """The running game, and its first state."""
        textworld = _package()
        wanted = ("feedback", "description", "objective", "score", "max_score", "won")
        infos = dict.fromkeys((*wanted, "admissible_commands"), True)
        with _LOCK:
            env = textworld.start(self.path, textworld.EnvInfos(**infos))
            return env, env.reset()


def _package() -> Any:
    """The package, without its warning of every game that its interpreter does not know."""
    warnings.filterwarnings("ignore", message="Game .* is not fully supported")
    return import_package("textworld", "textworld")[0]


def _settings(add_arguments: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Settings of a challenge: its defaults and the given values."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    names = {action.dest for action in parser._actions} - {"help"}
    for action in parser._actions:
        if action.required and action.dest not in values:
            raise ConfigError(f"--env.env_kwargs: {action.dest} is missing: {action.help}")
        action.required = False
    for name in set(values) - names:
        raise KeyError(f"{name}{did_you_mean(name, sorted(names))}")
    return {**vars(parser.parse_args([])), **values}


@lru_cache(maxsize=MAX_GAMES)
def _game(env_id: str, kwargs: str, seed: int) -> World:
    return World(env_id, json.loads(kwargs), seed)


def game_of(task: Any) -> World:
    """The game of a task; games are made in turn, and the most recent games are kept."""
    with _LOCK:
        source = task["source"]
        return _game(source["env_id"], json.dumps(task["env_kwargs"]), source["seed"])


def command_in(reply: str) -> str | None:
    """The last <action> in lower case; None without an action."""
    commands = ACTION.findall(reply)
    return " ".join(commands[-1].lower().split()) if commands else None


def is_game_command(command: str, verbs: list[str]) -> bool:
    """Whether a command is a single action of the game, not a command of the interpreter."""
    words = command.split()
    plain = _COMMAND.fullmatch(command) and len(command) <= MAX_COMMAND_CHARS
    return bool(plain) and words[0] in verbs and "then" not in words


def training(config: TextWorldConfig) -> Iterator[dict[str, Any]]:
    package = import_package("textworld", "textworld")[1]
    tasks = training_episodes(config, package)
    where = f"--env.env_id {config.env_id} --env.env_kwargs {config.env_kwargs}"
    with convert_errors(REFUSALS, where):
        game_of(held_out(config)[0])  # a wrong setting fails before the first rollout
    return ({**task, "env_kwargs": config.env_kwargs} for task in tasks)


def held_out(config: TextWorldConfig) -> list[dict[str, Any]]:
    tasks = held_out_episodes(config, import_package("textworld", "textworld")[1])
    return [{**task, "env_kwargs": config.env_kwargs} for task in tasks]


def gold(task: Any) -> list[str]:
    """The walkthrough that the package makes with each game."""
    return [f"<action>{command}</action>" for command in game_of(task).walkthrough]


CARD = Card(
    "games",
    data="made on the spot by TextWorld",
    licence="MIT",
    gold=gold,
    turns="1-30",
    extras="atropos-rl[textworld]",
)


@environment(training, eval_dataset=held_out, config=TextWorldConfig, card=CARD)
async def textworld(task: Any, model: Model, config: TextWorldConfig) -> Reward:
    """Play a game, scored by its points."""
    game = await asyncio.to_thread(game_of, task)
    env, state = await asyncio.to_thread(game.start)
    try:
        return await play_textworld(env, state, game.verbs, model, config)
    finally:
        await asyncio.to_thread(env.close)


def step(env: Any, command: str) -> Any:
    """(state, points, whether the game is over) after a command."""
    with _LOCK:
        return env.step(command)


async def play_textworld(
    env: Any, state: Any, verbs: list[str], model: Model, config: TextWorldConfig
) -> Reward:
    """Play an episode until its end, a reply without a command, or a limit."""
    about = {"objective": state.objective, "description": state.description.strip()}
    text = PROMPT.format(**about, verbs=", ".join(verbs))
    turns = Turns(model, config)
    refused, over = 0, False
    while not over:
        if config.list_commands:
            text = f"{text}\n\nPossible now: {', '.join(state.admissible_commands)}."
        reply = await turns.ask(text)
        if reply is None:
            break
        command = command_in(reply)
        if command is None:
            over = True
        elif not is_game_command(command, verbs):
            refused, text = refused + 1, REFUSED.format(verbs=", ".join(verbs))
        else:
            state, _, over = await asyncio.to_thread(step, env, command)
            text = _STATUS.sub("", state.feedback).strip()
    require_turn(turns.taken, config)
    score = state.score / state.max_score
    if not over and config.cut_reward is not None:
        score = config.cut_reward
    return turns.result(score, over, won=float(state.won), refused=refused)


if __name__ == "__main__":
    textworld.cli()

"""Gymnasium environments shown as text and played turn by turn.

    python -m atroposlib.adapters.gymnasium serve --env.env_id Taxi-v4
    python -m atroposlib.adapters.gymnasium process --env.env_id FrozenLake-v1 \\
        --env.env_kwargs '{"is_slippery": false}'

A turn shows what the environment renders (its "ansi" mode if available, else the observation)
and the model's last <action> names the next action. Every episode of a group starts from the same
seed. Needs gymnasium: pip install 'atropos-rl[gymnasium]'.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from enum import Enum
from importlib import import_module
from typing import Any

from pydantic import Field

from atroposlib.adapters import (
    ACTION,
    RewardedConfig,
    held_out_episodes,
    import_package,
    training_episodes,
)
from atroposlib.adapters.turns import Turns, require_turn
from atroposlib.envs.function_env import Model, Reward, environment
from atroposlib.errors import ConfigError

PROMPT = (
    "You play {env_id}. In every turn you see the state and choose one action. Think briefly if "
    "you like, then end with the action in tags, such as <action>{example}</action>.\n"
    "Actions: {actions}\n{legend}"
)
# Documented by gymnasium, but not part of its API: action names, legend of the picture.
KNOWN = {
    "FrozenLake": (
        ["left", "down", "right", "up"],
        "S start, F frozen lake, H hole, G goal; you stand on the red letter.",
    ),
    "CliffWalking": (["up", "right", "down", "left"], "x you, o ground, C cliff, T target."),
    "Taxi": (
        ["south", "north", "east", "west", "pick up", "drop off"],
        "The taxi is yellow, or green with the passenger in it; the passenger waits at the blue "
        "letter and wants to go to the magenta one; | is a wall.",
    ),
    "Blackjack": (
        ["stick", "hit"],
        "An observation is (your sum, the dealer's card, whether you hold a usable ace).",
    ),
}
# Colours that carry meaning in ansi modes.
COLOURS = {"41": "red", "42": "green", "43": "yellow", "34;1": "blue", "35": "magenta"}
_ESCAPE = re.compile(r"\x1b\[([\d;]*)m")


class Illegal(str, Enum):
    """Reaction to a reply without a legal action."""

    END = "end"  # the episode ends
    ASK_AGAIN = "ask_again"  # the turn is lost, and the next message lists the actions
    NOOP = "noop"  # the action number noop_action is played


class GymnasiumConfig(RewardedConfig):
    """Settings of the game."""

    env_id: str = Field(
        default="FrozenLake-v1", description="as gymnasium registers it, or my_module:my_id"
    )
    action_names: list[str] | None = Field(
        default=None, description="words for actions 0, 1, ...; None: known ones, else numbers"
    )
    max_turns: int = Field(default=30, ge=1, description="most turns of an episode")
    discount: float = Field(default=0.99, ge=0, le=1, description="per turn; 1: the sum")
    illegal_action: Illegal = Field(default=Illegal.END, description="end, ask_again or noop")
    illegal_reward: float = Field(default=-1.0, description="reward of a turn without action")
    noop_action: int = Field(default=0, ge=0, description="number of the action of noop")


class Game:
    """Episodes of an environment with numbered actions.

    Raises ConfigError: gymnasium or the environment is missing, or its actions have no
    numbers.
    """

    def __init__(self, config: GymnasiumConfig) -> None:
        gymnasium, self.package = import_package("gymnasium", "gymnasium")
        kwargs, env_id = dict(config.env_kwargs), config.env_id
        module, _, registered = env_id.rpartition(":")
        try:
            if module:  # its import registers the environment
                import_module(module)
            if "ansi" in _render_modes(gymnasium.spec(registered)):
                kwargs.setdefault("render_mode", "ansi")
            self.env: Any = gymnasium.make(registered, **kwargs)
        except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
            raise ConfigError(f"--env.env_id {env_id}: {error}") from error
        actions = self.env.action_space
        if not isinstance(actions, gymnasium.spaces.Discrete):
            raise ConfigError(
                f"--env.env_id {env_id}: its actions are {actions}; only numbered ones can be "
                "named in text"
            )
        self.first_action = int(actions.start)  # a space may start at another number than 0
        self.names = action_names(env_id, int(actions.n), config.action_names)

    def start(self, seed: int) -> str:
        """Start the episode of ``seed`` and return its first state."""
        observation, _ = self.env.reset(seed=seed)
        return self._observation_text(observation)

    def step(self, action: int) -> tuple[str, float, bool, bool]:
        """(state, reward, terminated, truncated) after action number ``action`` of ``names``."""
        observation, reward, ended, cut, _ = self.env.step(self.first_action + action)
        return self._observation_text(observation), float(reward), bool(ended), bool(cut)

    def _observation_text(self, observation: Any) -> str:
        if self.env.render_mode == "ansi":
            return as_text(str(self.env.render()))
        return f"Observation: {observation}"


def _render_modes(spec: Any) -> list[str]:
    """Render modes of the registered class, read without making an environment."""
    from gymnasium.envs.registration import load_env_creator

    creator = spec.entry_point
    creator = load_env_creator(creator) if isinstance(creator, str) else creator
    return list((getattr(creator, "metadata", None) or {}).get("render_modes") or [])


def as_text(rendered: str) -> str:
    r"""Terminal colours as words: ``\x1b[41mS\x1b[0mFFF`` becomes ``[red:S]FFF``."""
    parts, coloured, position = [], False, 0
    for escape in _ESCAPE.finditer(rendered):
        parts.append(rendered[position : escape.start()])
        position = escape.end()
        if coloured:
            parts.append("]")
        coloured = escape[1] not in ("", "0")
        if coloured:
            parts.append(f"[{COLOURS.get(escape[1], escape[1])}:")
    parts.append(rendered[position:] + ("]" if coloured else ""))
    return "".join(parts).strip("\n")


def known_actions(env_id: str) -> tuple[list[str] | None, str]:
    """Action names and legend, by the name without namespace and version."""
    return KNOWN.get(env_id.rpartition("/")[2].partition("-")[0], (None, ""))


def action_names(env_id: str, count: int, given: Sequence[str] | None) -> list[str]:
    """Names of ``count`` actions: the given names, else the known names, else numbers."""
    names = list(given or known_actions(env_id)[0] or map(str, range(count)))
    if len(names) != count:
        raise ConfigError(
            f"--env.action_names: {env_id} has {count} actions, not {len(names)}"
        )
    return names


def chosen_action(reply: str, names: Sequence[str]) -> int | None:
    """The action of the last <action>, by name or number; None without a valid action."""
    actions = ACTION.findall(reply)
    if not actions:
        return None
    word = " ".join(actions[-1].split()).lower()
    lowered = [name.lower() for name in names]
    if word in lowered:
        return lowered.index(word)
    return int(word) if word in map(str, range(len(names))) else None


def training(config: GymnasiumConfig) -> Iterator[dict[str, Any]]:
    game = Game(config)  # a wrong id fails before the first rollout
    game.start(0)
    game.env.close()
    if config.noop_action >= len(game.names):
        raise ConfigError(f"--env.noop_action: {config.env_id} has {len(game.names)} actions")
    return training_episodes(config, game.package)


def held_out(config: GymnasiumConfig) -> list[dict[str, Any]]:
    return held_out_episodes(config, import_package("gymnasium", "gymnasium")[1])


@environment(training, eval_dataset=held_out, config=GymnasiumConfig)
async def gymnasium(task: Any, model: Model, config: GymnasiumConfig) -> Reward:
    """Play an episode, scored by the environment's own rewards."""
    game = await asyncio.to_thread(Game, config)
    try:
        return await play_gymnasium(game, task["seed"], model, config)
    finally:
        await asyncio.to_thread(game.env.close)


async def play_gymnasium(
    game: Game, seed: int, model: Model, config: GymnasiumConfig
) -> Reward:
    """Play an episode until its end or until a limit."""
    actions = ", ".join(f"{name} ({i})" for i, name in enumerate(game.names))
    about = {"env_id": config.env_id, "example": game.names[0], "actions": actions}
    opening = PROMPT.format(**about, legend=known_actions(config.env_id)[1])
    turns = Turns(model, config, opening)
    state = await asyncio.to_thread(game.start, seed)
    illegal = ended = cut = False
    while not (ended or cut) and (reply := await turns.ask(state)) is not None:
        reward = 0.0
        action = chosen_action(reply, game.names)
        if action is None:
            illegal, reward = True, config.illegal_reward
            turns.note = f"That named no action. Actions: {', '.join(game.names)}\n\n"
            ended = config.illegal_action is Illegal.END
            if config.illegal_action is Illegal.NOOP:
                action = config.noop_action
        if action is not None:
            state, earned, ended, cut = await asyncio.to_thread(game.step, action)
            reward += earned
        turns.reward(reward)
    require_turn(turns.taken, config)
    return turns.result(turns.score(ended), ended, illegal=float(illegal))


if __name__ == "__main__":
    gymnasium.cli()

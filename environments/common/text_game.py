"""Gymnasium environments as text: states, action names, chosen actions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.errors import ConfigError

# Documented by gymnasium, but not part of its API: action names, legend of the picture.
KNOWN = {
    "FrozenLake": (
        ["left", "down", "right", "up"],
        "S start, F frozen lake, H hole, G goal; you stand on the red letter.",
    ),
    "CliffWalking": (
        ["up", "right", "down", "left"],
        "x you, o ground, C cliff, T target.",
    ),
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
_ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)


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


def family(env_id: str) -> str:
    """The name without namespace and version: ``Taxi`` of ``Taxi-v4``."""
    return env_id.rpartition("/")[2].partition("-")[0]


def action_names(env_id: str, count: int, given: Sequence[str] | None) -> list[str]:
    """Names of ``count`` actions: the given ones, the known ones, else numbers."""
    known = KNOWN[family(env_id)][0] if family(env_id) in KNOWN else None
    names = list(given or known or map(str, range(count)))
    if len(names) != count:
        raise ConfigError(
            f"--env.action_names: {env_id} has {count} actions, not {len(names)}"
        )
    return names


def legend(env_id: str) -> str:
    """Legend of the picture; empty if unknown."""
    return KNOWN[family(env_id)][1] if family(env_id) in KNOWN else ""


def chosen_action(reply: str, names: Sequence[str]) -> int | None:
    """The action of the last <action>, by name or number; None without a valid one."""
    found = _ACTION.findall(reply)
    if not found:
        return None
    word = " ".join(found[-1].split()).lower()
    lowered = [name.lower() for name in names]
    if word in lowered:
        return lowered.index(word)
    return int(word) if word in map(str, range(len(names))) else None


class Game:
    """Episodes of an environment with numbered actions.

    Raises ConfigError: gymnasium or the environment is missing, or its actions have no
    numbers.
    """

    def __init__(
        self, env_id: str, env_kwargs: Mapping[str, Any], names: Sequence[str] | None
    ) -> None:
        try:
            import gymnasium
        except ImportError as error:
            raise ConfigError(
                "gymnasium is missing: pip install 'atroposlib[examples]'"
            ) from error
        kwargs = dict(env_kwargs)
        try:
            if "ansi" in _render_modes(gymnasium.spec(env_id)):
                kwargs.setdefault("render_mode", "ansi")
            self.env: Any = gymnasium.make(env_id, **kwargs)
        except (gymnasium.error.Error, TypeError) as error:
            raise ConfigError(f"--env.env_id {env_id}: {error}") from error
        actions = self.env.action_space
        if not isinstance(actions, gymnasium.spaces.Discrete):
            raise ConfigError(
                f"--env.env_id {env_id}: its actions are {actions}; only numbered ones can be "
                "named in text"
            )
        self.first_action = int(actions.start)  # a space may start at another number than 0
        self.names = action_names(env_id, int(actions.n), names)

    def start(self, seed: int) -> str:
        """Start the episode of ``seed`` and return its first state."""
        observation, _ = self.env.reset(seed=seed)
        return self._shown(observation)

    def step(self, action: int) -> tuple[str, float, bool]:
        """(state, reward, over) after action number ``action`` of ``names``."""
        observation, reward, ended, cut, _ = self.env.step(self.first_action + action)
        return self._shown(observation), float(reward), bool(ended or cut)

    def _shown(self, observation: Any) -> str:
        if self.env.render_mode == "ansi":
            return as_text(str(self.env.render()))
        return f"Observation: {observation}"


def _render_modes(spec: Any) -> list[str]:
    """Render modes of the registered class, read without making an environment."""
    from gymnasium.envs.registration import load_env_creator

    creator = spec.entry_point
    creator = load_env_creator(creator) if isinstance(creator, str) else creator
    return list((getattr(creator, "metadata", None) or {}).get("render_modes") or [])

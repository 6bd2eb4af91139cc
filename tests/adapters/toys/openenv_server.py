"""Environments of the package openenv: a guessed number, sums by JSON, and one that fails."""

from __future__ import annotations

from typing import Any

from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    message: str


class Add(Action):
    left: int
    right: int


class Seen(Observation):
    text: str


class _Episode(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State(episode_id="", step_count=0)

    def reset(self, seed: int | None = None, episode_id: Any = None, **more: Any) -> Seen:
        self.secret = (seed or 0) % 10
        self._state = State(episode_id=episode_id or "", step_count=0)
        return Seen(text=f"Guess a digit{more.get('mark', '')}.")

    @property
    def state(self) -> State:
        return self._state

    def close(self) -> None:
        pass


class Digits(_Episode):
    """Right: 1; wrong: -0.25, and the third one ends it."""

    def step(self, action: Guess, timeout_s: float | None = None, **_: Any) -> Seen:
        self._state.step_count += 1
        if action.message.strip() == str(self.secret):
            return Seen(text="right", reward=1.0, done=True)
        return Seen(text="wrong", reward=-0.25, done=self._state.step_count == 3)


class Sums(_Episode):
    def step(self, action: Add, timeout_s: float | None = None, **_: Any) -> Seen:
        right = action.left + action.right == self.secret
        return Seen(text="", reward=float(right), done=True)


class Broken(_Episode):
    def step(self, action: Guess, timeout_s: float | None = None, **_: Any) -> Seen:
        raise RuntimeError("the checker fell over")


class Silent(_Episode):
    def step(self, action: Guess, timeout_s: float | None = None, **_: Any) -> Seen:
        return Seen(text="", done=True)


def app_of(env: type, action: type = Guess, places: int = 8) -> Any:
    return create_fastapi_app(env, action, Seen, max_concurrent_envs=places)

"""Games of textarena, for a single player, or for several players with the same model.

    python -m atroposlib.adapters.textarena serve --env.env_id GuessTheNumber-v0
    python -m atroposlib.adapters.textarena process --env.env_id TicTacToe-v0

In a game with several players each has its endpoint, groups and reward. A player reads the
text since its last turn. Needs textarena: pip install 'atropos-rl[textarena]'.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any

from pydantic import Field

from atroposlib.adapters import (
    EpisodeConfig,
    held_out_episodes,
    import_package,
    training_episodes,
)
from atroposlib.adapters.turns import fits, require_turn
from atroposlib.envs.function_env import Model, Reward, environment
from atroposlib.errors import ConfigError

MAX_PLAYERS = 8
_NUMBERS = threading.Lock()  # games draw from Python's global random numbers
# Errors of games that cannot be made: wrong syntax, missing word lists, keys and files.
REFUSALS = (
    ValueError,
    LookupError,
    ImportError,
    SyntaxError,
    TypeError,
    AssertionError,
    OSError,
    AttributeError,
)


class TextArenaConfig(EpisodeConfig):
    """Settings of the game."""

    env_id: str = Field(default="GuessTheNumber-v0", description="as textarena registers it")
    players: int | None = Field(
        default=None,
        ge=1,
        description="number of players; None: the fewest that the game takes",
    )
    self_play: bool = Field(
        default=True, description="train every player; false: player 0 only"
    )
    max_turns: int = Field(default=60, ge=1, description="most turns of all players together")


class Match:
    """A game. Its random numbers depend on the seed only.

    Raises ConfigError: textarena or the game is missing, or the game cannot be made here.
    """

    def __init__(self, config: TextArenaConfig, seed: int) -> None:
        self.seen: dict[int, str] = {}  # whole text that a player has read
        self.numbers = random.Random(seed).getstate()
        counts = [config.players] if config.players else range(1, MAX_PLAYERS + 1)
        with self._own_numbers():
            arena, self.package = _arena()
            for count in counts:
                self.players = count
                try:
                    self.env = arena.make(config.env_id, **config.env_kwargs)
                    self.env.reset(num_players=count, seed=seed)
                    break
                except REFUSALS as error:
                    if count == counts[-1] or not _about_players(error):
                        text = " ".join(str(error).split()).strip("* ")
                        kind = type(error).__name__
                        raise ConfigError(
                            f"--env.env_id {config.env_id}: {kind}: {text:.300}"
                        ) from error

    def observe(self) -> tuple[int, str]:
        """The player to move, and the text that is new to this player."""
        with self._own_numbers():
            player, observed = self.env.get_observation()
        if not isinstance(observed, str):  # the "-raw" games return what is new
            return player, "\n".join(message for _, message, *_ in observed)
        before, self.seen[player] = self.seen.get(player, ""), observed
        return player, observed.removeprefix(before).strip()

    def step(self, action: str) -> bool:
        """Whether the game is over."""
        with self._own_numbers():
            return bool(self.env.step(action=action)[0])

    def close(self) -> tuple[dict[int, float] | None, dict[int, Any]]:
        """Rewards by player, None of a game that was cut, and the game's notes on each."""
        with self._own_numbers():
            rewards, notes = self.env.close()
        return rewards, notes or {}

    @contextmanager
    def _own_numbers(self) -> Iterator[None]:
        with _NUMBERS:
            outer = random.getstate()
            random.setstate(self.numbers)
            try:
                yield
            finally:
                self.numbers = random.getstate()
                random.setstate(outer)


def _about_players(error: Exception) -> bool:
    """Whether another number of players may help."""
    return isinstance(error, AssertionError) or "player" in str(error).lower()


def _arena() -> tuple[Any, str]:
    """The package, with the download of missing word lists by its games switched off."""
    nltk, _ = import_package("nltk", "textarena")
    nltk.download = lambda *names, **options: False
    return import_package("textarena", "textarena")


def training(config: TextArenaConfig) -> Iterator[dict[str, Any]]:
    game = Match(config, 0)  # a game that cannot be played fails before the first rollout
    game.observe()
    return training_episodes(config, game.package)


def held_out(config: TextArenaConfig) -> list[dict[str, Any]]:
    return held_out_episodes(config, _arena()[1])


class Seats:
    """The players' conversations: a single player by chat, several by an endpoint each."""

    def __init__(self, model: Model, config: TextArenaConfig, stack: AsyncExitStack) -> None:
        self.model, self.config, self.stack = model, config, stack
        self.histories: dict[int, list[dict[str, Any]]] = {}
        self.used: dict[int, int] = {}  # tokens of each conversation
        self.clients: dict[int, Any] = {}

    def place(self, player: int) -> dict[str, Any]:
        """Arguments of the endpoint of a player."""
        return {"name": f"player{player}", "trainable": self.config.self_play or player == 0}

    async def ask(self, player: int, text: str, *, alone: bool) -> str | None:
        """The player's action; None if the conversation has no room for it."""
        if not fits(self.model, text, self.config, self.used.get(player, 0)):
            return None
        history = self.histories.setdefault(player, [])
        history.append({"role": "user", "content": text})
        if alone:
            reply = str(await self.model.chat(history))
            self.used[player] = self.model.row_tokens
        else:
            if player not in self.clients:
                client = await self.model.openai(**self.place(player))
                self.clients[player] = await self.stack.enter_async_context(client)
            chat = self.clients[player].chat.completions
            completion = await chat.create(model="any", messages=history)
            reply = completion.choices[0].message.content or ""
            self.used[player] = completion.usage.total_tokens
        history.append({"role": "assistant", "content": reply})
        return reply


@environment(training, eval_dataset=held_out, config=TextArenaConfig)
async def textarena(task: Any, model: Model, config: TextArenaConfig) -> Reward:
    """Play a game; the score is the reward of player 0, and each player has its own."""
    game, over, turns = await asyncio.to_thread(Match, config, task["seed"]), False, 0
    async with AsyncExitStack() as stack:
        seats = Seats(model, config, stack)
        while not over and turns < config.max_turns:
            player, text = await asyncio.to_thread(game.observe)
            action = await seats.ask(player, text, alone=game.players == 1)
            if action is None:
                break
            turns, over = turns + 1, await asyncio.to_thread(game.step, action)
    require_turn(turns, config)
    rewards, notes = await asyncio.to_thread(game.close)
    invalid = any(note.get("invalid_move") for note in notes.values())
    scored = over and rewards is not None
    metrics = {"turns": turns, "invalid": float(invalid), "truncated": float(not scored)}
    if not scored or rewards is None:
        return Reward(config.cut_reward, metrics)
    for player in range(game.players if game.players > 1 else 0):
        endpoint = await model.endpoint(**seats.place(player))
        endpoint.reward(float(rewards.get(player, 0.0)))
    return Reward(float(rewards[0]), metrics)


if __name__ == "__main__":
    textarena.cli()

"""Conversation of a player turn by turn: limits, notes on replies, rewards, score.

The loop of an adapter:

    turns = Turns(model, config, "You play chess.")
    while not over and (reply := await turns.ask(state)) is not None:
        state, reward, over = step(reply)
        turns.reward(reward)
    return turns.result(turns.score(over), over)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from atroposlib.adapters import RewardedConfig, Score
from atroposlib.envs.function_env import FunctionEnvConfig, Model, Reply, Reward
from atroposlib.errors import ConfigError

TEMPLATE_TOKENS = 32  # upper bound of the template text around a message


def fits(model: Model, text: str, config: FunctionEnvConfig, used: int | None = None) -> bool:
    """Whether ``text`` and a reply fit after the ``used`` tokens of a conversation.

    ``used`` defaults to the tokens of the last row. Without a tokenizer a token counts as four
    characters.
    """
    encode = getattr(getattr(model.session, "tokenizer", None), "encode", None)
    new = len(encode(text)) if encode else len(text) // 4
    before = model.row_tokens if used is None else used
    return before + new + TEMPLATE_TOKENS + config.max_tokens <= config.max_token_length


def require_turn(turns: int, config: FunctionEnvConfig) -> None:
    """Raise ConfigError if ``turns`` is 0: the first message left no room for a reply."""
    if not turns:
        limit = config.max_token_length
        raise ConfigError(f"--env.max_token_length {limit} has no room for a turn")


class Turns:
    """Conversation of a player until a limit of ``config``, and rewards of its turns.

    ``system`` and ``tools`` (in OpenAI's form) are the system message and tools, if any.
    """

    def __init__(
        self, model: Model, config: Any, system: str = "", tools: Sequence[Any] | None = None
    ) -> None:
        self.model = model
        self.config = config
        self.messages: list[Any] = [{"role": "system", "content": system}] if system else []
        self.tools = tools or ()
        self.taken = 0  # turns so far
        self.note = ""  # remark on the last reply, before the next state
        self.rewards: list[float] = []
        # Text of the first request, beside its state.
        self._opening = system if tools is None else system + json.dumps(tools)

    async def ask(self, state: str, news: Sequence[Any] | None = None) -> Reply | None:
        """The reply to a state; None without a further turn, or without room for it.

        ``news`` are the messages of ``state``, by default a message of the user.
        """
        text = self.note + state
        shown = text if self.taken else self._opening + text
        if self.taken >= self.config.max_turns or not fits(self.model, shown, self.config):
            return None
        if news is None:
            news = [{"role": "user", "content": text}]
        reply = await self.model.chat([*self.messages, *news], tools=self.tools)
        self.messages = reply.messages
        self.taken += 1
        self.note = ""
        return reply

    def reward(self, reward: float) -> None:
        """Keep the reward of the last turn; where rewards are added, the reply is rewarded."""
        self.rewards.append(reward)
        if self.config.reward is Score.DISCOUNTED:
            self.model.reward(self.config.discount ** (self.taken - 1) * reward)

    def score(self, ended: bool, *, added: bool = True) -> float | None:
        """Score beside the rewards of replies; without ``added`` rewards the final score."""
        if added and self.config.reward is Score.DISCOUNTED:
            return 0.0
        return self.rewards[-1] if ended and self.rewards else self.config.cut_reward

    def result(self, score: float | None, ended: bool, **metrics: float) -> Reward:
        """Reward with ``metrics``, the turns, and whether a limit cut the episode."""
        if isinstance(self.config, RewardedConfig):
            metrics["return"] = sum(self.rewards)
        counts = {"turns": float(self.taken), "truncated": float(not ended)}
        return Reward(score, {**metrics, **counts})

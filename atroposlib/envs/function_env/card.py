"""Card of an environment: its facts and gold replies; rollouts of replies without a model.

@environment(tasks, card=Card("games", "made on the spot", "MIT", gold))
reward, model = await play(env_cls, task, gold(task))    # no server, no tokens
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn, Union

from atroposlib.envs.function_env.data import manager_of, task_id
from atroposlib.envs.function_env.rewards import Reward, RewardPlan, call_user
from atroposlib.envs.function_env.rollout_model import Model
from atroposlib.errors import ConfigError
from atroposlib.generation.chat.tool_call_translator import ToolCallTranslator
from atroposlib.wire import ids

Replies = Union[str, Sequence[str]]  # reply of a single turn, or replies of all turns


@dataclass(frozen=True)
class Card:
    """Facts of an environment, for its checks and for the gallery.

    Example: Card("games", data="made on the spot", licence="MIT", gold=best_moves, turns="3-5")
    """

    kind: str
    data: str  # origin of the tasks
    licence: str  # licence of the data
    gold: Callable[[Any], Replies]  # replies to a task that deserve ``best``
    turns: str = "1"
    extras: str = ""  # extras of atroposlib, and programs; empty: none
    floor: float = 0.0  # score of a reply that deserves nothing
    best: float = 1.0
    wrong: Callable[[Any], Sequence[Replies]] | None = None  # replies that deserve ``floor``
    # Limits of checks of `atropos env validate` with a reason; None leaves a check out.
    bounds: Mapping[str, tuple[float | None, str]] = field(default_factory=dict)


def card_of(env_cls: Any) -> Card | None:
    """The card of a function environment, or the attribute ``card`` of a class."""
    card = getattr(getattr(env_cls, "definition", env_cls), "card", None)
    return card if isinstance(card, Card) else None


class ScriptedSession:
    """Session that replies with given texts in order, then with empty texts."""

    def __init__(self, replies: Replies) -> None:
        self.left = [replies] if isinstance(replies, str) else list(replies)

    async def chat_completion(self, *, tools: Sequence[Any] = (), **_: Any) -> Any:
        """The next text; where there are tools, calls in the format of hermes are tool calls."""
        text = self.left.pop(0) if self.left else ""
        content, calls, reason = ToolCallTranslator(None).parse_model_output(text, tools=tools)
        message = SimpleNamespace(content=content, tool_calls=calls)
        choice = SimpleNamespace(message=message, text=text, finish_reason=reason)
        return SimpleNamespace(id=ids.source().hex, choices=[choice], usage=None)

    completion = chat_completion


async def play(
    env_cls: Any, task: Any, replies: Replies, **settings: Any
) -> tuple[Reward, Model]:
    """Reward of a rollout of a function environment, and its model with the history.

    Raises RolloutError: the reward failed. Errors of the function pass unchanged.
    """
    return await _play(env_cls, task, replies, env_cls.env_config_cls(**settings))


async def examples(env_cls: Any, tasks: Sequence[Any], config: Any) -> list[Example]:
    """Gold rollouts of ``gold_examples`` tasks and a spare, for a task that is among the examples.

    Raises ConfigError: there is no card, or there are too few tasks.
    """
    card, wanted = env_cls.definition.card, config.gold_examples
    if card is None:
        raise ConfigError(f"--env.gold_examples {wanted}: {env_cls.name} has no card=")
    if len(tasks) <= wanted:
        raise ConfigError(f"--env.gold_examples {wanted}: there are {len(tasks)} tasks")
    shots = []
    for place in random.Random(config.seed).sample(range(len(tasks)), wanted + 1):
        task = tasks[place]
        _, model = await _play(env_cls, task, card.gold(task), config)
        messages = model.replies[-1].messages
        shots.append(Example(task_id(task), [m for m in messages if m["role"] != "system"]))
    return shots


class Example(NamedTuple):
    """Messages of a gold rollout."""

    id: str  # id of its task
    messages: list[dict[str, Any]]


async def _play(
    env_cls: Any, task: Any, replies: Replies, config: Any
) -> tuple[Reward, Model]:
    async def refuse(*_: Any) -> NoReturn:
        raise ConfigError("an agent with a client needs a server, not given replies")

    model = Model(ScriptedSession(replies), "eval", 0.0, 512, open_endpoint=refuse)
    return await score_session(env_cls, task, model, config), model


async def score_session(env_cls: Any, task: Any, model: Model, config: Any) -> Reward:
    """Reward of a rollout on the session of ``model``, in a separate lifespan."""
    definition = env_cls.definition
    lifespan = (
        manager_of(definition.lifespan, config) if definition.lifespan else nullcontext()
    )
    async with lifespan as resources:
        offered = {"config": config, "resources": resources}
        returned = await call_user(definition.function, task, model, **offered)
        name = env_cls.name or ""
        plan: RewardPlan = definition.rewards.with_weights(config.reward_weights)
        return await plan.score(name, task_id(task), task, returned, offered)

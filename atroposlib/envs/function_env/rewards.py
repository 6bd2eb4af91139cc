"""Reward of a rollout: a score from named, weighted rewards.

float | bool | None          the score; None: no score, the sample is drawn again
{"exact": 1, "short": 0.3}   named rewards, summed with their weights
Reward(0.7, {"steps": 3})    a score, and numbers that are only logged
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Union

from atroposlib.errors import ConfigError, boundary
from atroposlib.settings.sentences import did_you_mean

RewardFunction = Callable[..., Any]
Rewards = Union[
    Mapping[str, float],
    Mapping[RewardFunction, float],
    Sequence[RewardFunction],
    RewardFunction,
    None,
]


@dataclass(frozen=True)
class Reward:
    """Score of a rollout, and named numbers that are logged.

    Example: Reward(1.0, {"exact": 1.0, "tool_calls": 3})
    """

    score: float | None  # None: no score could be given; the sample is drawn again
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RewardPlan:
    """Weights of the named rewards, and the functions that compute rewards, if any.

    Without ``weights`` every returned name has weight 1.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    functions: Mapping[str, RewardFunction] = field(default_factory=dict)

    @classmethod
    def of(cls, rewards: Rewards) -> RewardPlan:
        """Plan of ``@environment(rewards=...)``.

        Raises ConfigError: names and functions are mixed, or two functions share a name.
        """
        if rewards is None:
            return cls()
        if callable(rewards):
            rewards = [rewards]
        pairs: Mapping[Any, float] = (
            rewards if isinstance(rewards, Mapping) else {reward: 1.0 for reward in rewards}
        )
        if all(isinstance(key, str) for key in pairs):
            return cls({str(key): float(weight) for key, weight in pairs.items()})
        if not all(callable(key) for key in pairs):
            raise ConfigError("rewards: names or functions, not both")
        functions = {_name_of(function): function for function in pairs}
        if len(functions) < len(pairs):
            raise ConfigError("rewards: two functions have the same name")
        weights = {_name_of(function): float(weight) for function, weight in pairs.items()}
        return cls(weights, functions)

    def with_weights(self, weights: Mapping[str, float]) -> RewardPlan:
        """Plan for the same rewards with some ``weights`` replaced.

        Raises ConfigError: a weight names no reward.
        """
        for name in weights:
            if name not in self.weights:
                known, hint = list(self.weights), did_you_mean(name, self.weights)
                raise ConfigError(
                    f"reward_weights: no reward {name!r}, there are {known}{hint}"
                )
        return RewardPlan({**self.weights, **weights}, self.functions)

    async def score(
        self,
        env: str,
        item: str,
        task: Any,
        returned: Any,
        offered: Mapping[str, Any],
        code: Any = None,
    ) -> Reward:
        """Reward from the value that the rollout ``returned``; ``code`` is its function.

        A reward function gets the keywords of ``offered`` that it accepts.

        Raises RolloutError: a reward function failed, or its result is not a reward.
        """
        if not self.functions:
            with boundary(env, item, "reward", code):
                return combine_rewards(returned, self.weights)
        if returned is None:
            return Reward(None)
        values: dict[str, Any] = {}
        for name, function in self.functions.items():
            with boundary(env, item, f"reward {name}", function):
                value = await call_user(function, task, returned, **offered)
                values[name] = (
                    value if value is None else reward_number(value, f"reward {name!r}")
                )
        with boundary(env, item, "reward"):
            return combine_rewards(values, self.weights)


def combine_rewards(returned: Any, weights: Mapping[str, float]) -> Reward:
    """Reward from the value of a rollout, or from the values of its reward functions.

    None, or None for a reward that counts, is no score. A reward of weight 0 is only logged.
    Raises ValueError: a name without a weight, a weight without a value, or a value that is
    not a number.
    """
    if isinstance(returned, Reward):
        score = None if returned.score is None else reward_number(returned.score, "the score")
        return Reward(score, {k: reward_number(v, k) for k, v in returned.metrics.items()})
    if returned is None:
        return Reward(None)
    if not isinstance(returned, Mapping):
        if weights:
            raise ValueError(
                f"rewards has weights for {list(weights)}, so the rollout returns a dict of "
                f"them, not {type(returned).__name__}"
            )
        return Reward(reward_number(returned, "the score"))
    weights = weights or {name: 1.0 for name in returned}
    for name in returned:
        if name not in weights:
            hint = did_you_mean(str(name), weights)
            raise ValueError(f"reward {name!r} has no weight: give it 0 to only log it{hint}")
    missing = [name for name in weights if name not in returned]
    if missing:
        raise ValueError(f"no value for reward {missing[0]!r}; None says that there is none")
    values = {
        k: reward_number(v, f"reward {k!r}") for k, v in returned.items() if v is not None
    }
    if any(weight and name not in values for name, weight in weights.items()):
        return Reward(None, values)
    return Reward(sum(weights[name] * value for name, value in values.items()), values)


def reward_number(value: Any, what: str) -> float:
    """``value`` as a finite float. Arrays of a single element are numbers, strings are not."""
    if inspect.iscoroutine(value):
        value.close()  # avoids Python's own warning
        raise ValueError(f"{what} is a coroutine: write `await {value.__qualname__}(...)`")
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise ValueError(
            f"{what} is a number or None, not {type(value).__name__} {value!r:.80}"
        )
    as_float = float(value)
    if not math.isfinite(as_float):
        raise ValueError(
            f"{what} is {as_float}, which cannot be trained on: return a finite number or None"
        )
    return as_float


async def call_user(function: Callable[..., Any], *args: Any, **offered: Any) -> Any:
    """Call a user's function with the ``offered`` keywords that it accepts.

    A sync function runs in a thread, so that a slow reward does not stop the remaining
    rollouts.
    """
    wanted = inspect.signature(function).parameters
    arguments = {name: value for name, value in offered.items() if name in wanted}
    if is_async(function):
        return await function(*args, **arguments)
    result = await asyncio.to_thread(partial(function, *args, **arguments))
    return await result if inspect.isawaitable(result) else result


def is_async(function: Any) -> bool:
    """Whether a call of ``function`` returns a coroutine, also by an async ``__call__``."""
    call = getattr(function, "__call__", None)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _name_of(function: RewardFunction) -> str:
    inner = function.func if isinstance(function, partial) else function
    return str(getattr(inner, "__name__", type(inner).__name__))

"""Reward of a stored rollout: its function by name, and the arguments of a call.

    FILE.py:NAME, FILE.py (NAME is reward), MODULE:NAME, or a registered name

    def reward(completion, item): ...            a rollout a call, arguments by their names
    async def reward(completion, answer): ...    awaited
    def reward(completions, **columns): ...      the form of the registry: lists of length 1

Arguments are the texts and facts of the archive (``OFFERED``), the metadata of the environment, and
the columns of the task in a file of items.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from atroposlib.envs.function_env.rewards import combine_rewards
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.envs.reward_fns.reward_function import RewardFunction
from atroposlib.errors import ConfigError, RolloutError, boundary
from atroposlib.utils.command import plugins

STORED_REWARD = replace(plugins.REWARD, may_await=True)
DEFAULT_NAME = "reward"
# Facts of the archive that a reward may have as arguments; ``completion`` is the last reply.
OFFERED = (
    "completion",
    "prompt",
    "messages",
    "item",
    "env",
    "group_id",
    "metadata",
    "reward",
    "rewards",
    "finish_reason",
    "n_tokens",
    "n_trained",
    "turns",
    "step",
)
NEEDS = "needs"  # attribute of a reward: what it needs beyond texts, such as "sandbox"
INSTEAD = "`atropos env try ENV.py --replay RUN` runs the environment itself on stored replies"
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class StoredReward:
    """A reward that can be called with the values of a stored rollout."""

    name: str
    function: Callable[..., Any]
    in_lists: bool  # called with lists of completions, returns a list
    is_async: bool
    required: tuple[str, ...]
    accepted: tuple[str, ...] | None  # None: any keyword

    def missing(self, values: Mapping[str, Any]) -> list[str]:
        """Required arguments without a value."""
        return [name for name in self.required if name not in values]

    def arguments(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The keywords of a call."""
        accepted = values if self.accepted is None else self.accepted
        chosen = {name: values[name] for name in accepted if name in values}
        if self.in_lists:
            chosen["completions"] = [values["completion"]]
        return chosen

    def score(self, returned: Any) -> float | None:
        """The score in the result of a call; None: the reward gives none.

        Raises RolloutError: the result is no reward.
        """
        with boundary(self.name, "a stored rollout", "reward", self.function):
            if self.in_lists:
                (returned,) = returned
            return combine_rewards(returned, {}).score

    def call(self, values: Mapping[str, Any]) -> Any:
        """The result of a plain function. Raises RolloutError: the function failed."""
        with boundary(self.name, "a stored rollout", "reward", self.function):
            return self.function(**self.arguments(values))

    async def call_async(self, values: Mapping[str, Any], timeout_s: float) -> Any:
        """The result of an async function.

        Raises:
            RolloutError: the function failed, or its cause is a TimeoutError.
        """
        with boundary(self.name, "a stored rollout", "reward", self.function):
            return await asyncio.wait_for(self.function(**self.arguments(values)), timeout_s)


def load_stored_reward(name: str) -> StoredReward:
    """The reward of a name.

    Raises ConfigError: there is none of this name, or it needs more than an archive holds.
    """
    if name.endswith(".py"):
        name = f"{name}:{DEFAULT_NAME}"
    entry: Any = (
        plugins.load_plugin(STORED_REWARD, name) if ":" in name else registry.get(name)
    )
    if isinstance(entry, type) and issubclass(entry, RewardFunction):
        entry = registry.create(name) if ":" not in name else entry()
    refuse_needs(name, entry)
    signature = inspect.signature(
        entry.compute if isinstance(entry, RewardFunction) else entry
    )
    in_lists = "completions" in signature.parameters
    parameters = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.name != "completions"
    ]
    positional_only = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY]
    if positional_only:
        raise ConfigError(
            f"reward {name}: {positional_only[0]} has to be allowed as a keyword"
        )
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    named = [parameter for parameter in parameters if parameter.kind in _NAMED]
    return StoredReward(
        name=name,
        function=entry,
        in_lists=in_lists,
        is_async=inspect.iscoroutinefunction(entry),
        required=tuple(p.name for p in named if p.default is p.empty),
        accepted=None if takes_any else tuple(parameter.name for parameter in named),
    )


def refuse_needs(name: str, entry: Any) -> None:
    """Raise ConfigError for a reward whose attribute ``needs`` names a live part."""
    needs = getattr(entry, NEEDS, ())
    needs = [needs] if isinstance(needs, str) else [str(part) for part in needs]
    if needs:
        raise ConfigError(
            f"reward {name} needs {', '.join(needs)}: an archive has texts, tasks and metadata,"
            f" and no live part; {INSTEAD}"
        )


def require_arguments(reward: StoredReward, values: Mapping[str, Any]) -> None:
    """Raise ConfigError if a required argument is no value of the first rollout."""
    if missing := reward.missing(values):
        known = ", ".join(sorted(values))
        raise ConfigError(
            f"reward {reward.name} needs {', '.join(missing)}, which this run does not hold; there"
            f" are {known}. Columns of the tasks come from --items FILE.jsonl; {INSTEAD}"
        )


def values_of(
    record: Mapping[str, Any], columns: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Arguments of a record of the archive: metadata < columns of the task < facts.

    Args:
        columns: of each task, by its id.
    """
    task = columns.get(record["item"] or "", {})
    facts = {name: record[name] for name in OFFERED if name in record}
    return {**(record["metadata"] or {}), **task, **facts, "completion": record["answer"]}


def failure_kind(error: RolloutError) -> str:
    """The type of the exception that a reward raised: ``error: ValueError``."""
    return f"error: {type(error.__cause__).__name__}"

"""Environments of other packages as function environments, with a module and an extra each.

A module here imports its package when an environment is set up, never at its own import.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from importlib import import_module
from importlib.metadata import version
from itertools import count
from typing import Any

from pydantic import Field

from atroposlib.envs.function_env import FunctionEnvConfig
from atroposlib.errors import ConfigError

EVAL_SEEDS = 1_000_000  # seeds below are evaluated, seeds from here on trained
ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)  # action in a reply


class EpisodeConfig(FunctionEnvConfig):
    """Settings of games that are played turn by turn. A subclass gives ``env_id`` a default."""

    group_size: int = Field(
        default=8, ge=1, description="episodes from one seed, scored together"
    )
    max_token_length: int = Field(default=4096, ge=1, description="most tokens of a player")
    max_tokens: int = Field(default=128, ge=1, description="most tokens of one turn")
    eval_items: int = Field(default=32, ge=1, description="episodes evaluated")
    env_id: str
    env_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="arguments of the package's make"
    )
    cut_reward: float | None = Field(
        default=None, description="final score of an episode cut by a limit; None: no score"
    )
    max_turns: int = Field(default=16, ge=1, description="most turns of an episode")


class Score(str, Enum):
    """Score of an episode, from its rewards."""

    DISCOUNTED = "discounted"  # r_0 + discount r_1 + discount^2 r_2 ...
    FINAL = "final"  # the last reward, for example for reaching the goal


class RewardedConfig(EpisodeConfig):
    """Settings of games that reward single turns."""

    reward: Score = Field(default=Score.DISCOUNTED, description="discounted or final")
    discount: float = Field(default=1.0, ge=0, le=1, description="per turn; 1: the sum")


def import_package(name: str, extra: str, distribution: str = "") -> tuple[Any, str]:
    """The package ``name``, and its name and version, for example "gymnasium 1.4.0".

    ``distribution`` defaults to the name of the extra.

    Raises ConfigError: it is not installed or cannot be imported.
    """
    try:
        package = import_module(name)
    except ImportError as error:
        raise ConfigError(f"{error}: pip install 'atropos-rl[{extra}]'") from error
    distribution = distribution or extra
    return package, f"{distribution} {version(distribution)}"


@contextmanager
def convert_errors(
    errors: tuple[type[Exception], ...], where: str, reason: str = ""
) -> Iterator[None]:
    """Raise ConfigError for ``errors`` of the block: ``where`` and ``reason``, then the error."""
    try:
        yield
    except errors as error:
        what = f"{type(error).__name__}: {error}"
        text = f"{where}: {reason} ({what})" if reason else f"{where}: {what}"
        raise ConfigError(text) from error


def episode(env_id: str, seed: int, package: str) -> dict[str, Any]:
    """Task of an episode; ``source`` goes into the metadata of its groups."""
    source = {"package": package, "env_id": env_id, "seed": seed}
    return {"id": f"{env_id}/{seed}", "seed": seed, "source": source}


def training_episodes(config: EpisodeConfig, package: str) -> Iterator[dict[str, Any]]:
    """Episodes without end, with different game seeds for each ``seed`` of the settings."""
    for number in count(EVAL_SEEDS + 10_000_000 * config.seed):
        yield episode(config.env_id, number, package)


def held_out_episodes(config: EpisodeConfig, package: str) -> list[dict[str, Any]]:
    return [episode(config.env_id, number, package) for number in range(config.eval_items)]

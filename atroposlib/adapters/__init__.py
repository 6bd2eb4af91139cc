"""Environments of other packages as function environments, with a module and an extra each.

A module here imports its package when an environment is set up, never at its own import.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from itertools import count
from typing import Any

from pydantic import Field

from atroposlib.envs.function_env import FunctionEnvConfig, Model
from atroposlib.errors import ConfigError

EVAL_SEEDS = 1_000_000  # seeds below are evaluated, seeds from here on trained
ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL | re.IGNORECASE)  # action in a reply
TEMPLATE_TOKENS = 32  # upper bound of the template text around a message


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


def fits(model: Model, text: str, config: FunctionEnvConfig, used: int | None = None) -> bool:
    """Whether ``text`` and a reply fit after the ``used`` tokens of a conversation.

    ``used`` defaults to the tokens of the last row. Without a tokenizer a token counts as four
    characters.
    """
    encode = getattr(getattr(model.session, "tokenizer", None), "encode", None)
    new = len(encode(text)) if encode else len(text) // 4
    before = model.row_tokens if used is None else used
    return before + new + TEMPLATE_TOKENS + config.max_tokens <= config.max_token_length

"""Environments of other packages as function environments, one module and one extra each.

A module here imports its package when an environment is set up, never at its own import.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from typing import Any

from atroposlib.envs.function_env import FunctionEnvConfig, Model
from atroposlib.errors import ConfigError

EVAL_SEEDS = 1_000_000  # smaller seeds are evaluated, larger ones trained
TEMPLATE_TOKENS = 32  # upper bound of the template text around one message


def imported(name: str, extra: str) -> tuple[Any, str]:
    """The package ``name``, and its name and version, such as "gymnasium 1.4.0".

    Raises ConfigError: it is not installed or cannot be imported.
    """
    try:
        package = import_module(name)
    except ImportError as error:
        raise ConfigError(f"{error}: pip install 'atroposlib[{extra}]'") from error
    return package, f"{extra} {version(extra)}"


def episode(env_id: str, seed: int, package: str) -> dict[str, Any]:
    """Task of one episode; ``source`` goes into the metadata of its groups."""
    source = {"package": package, "env_id": env_id, "seed": seed}
    return {"id": f"{env_id}/{seed}", "seed": seed, "source": source}


def training_episodes(env_id: str, seed: int, package: str) -> Iterator[dict[str, Any]]:
    """Episodes without end, from other game seeds for every ``seed`` of the settings."""
    number = EVAL_SEEDS + 10_000_000 * seed
    while True:
        yield episode(env_id, number, package)
        number += 1


def fits(model: Model, text: str, config: FunctionEnvConfig, used: int | None = None) -> bool:
    """Whether ``text`` and a reply fit after the ``used`` tokens of a conversation.

    By default those of the last row. Without a tokenizer a token counts as four characters.
    """
    encode = getattr(getattr(model.session, "tokenizer", None), "encode", None)
    new = len(encode(text)) if encode else len(text) // 4
    before = model.row_tokens if used is None else used
    return before + new + TEMPLATE_TOKENS + config.max_tokens <= config.max_token_length

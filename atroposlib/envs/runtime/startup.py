"""Check of an environment's settings at the start of ``serve``, before any connection."""

from __future__ import annotations

import os
from collections.abc import Mapping

from atroposlib.envs.settings.config import BaseEnvConfig
from atroposlib.errors import ConfigError
from atroposlib.utils.command.startup import CHECK_ONLY, FILLS_BATCHES_OF


def require_trainable(
    config: BaseEnvConfig, variables: Mapping[str, str] = os.environ
) -> None:
    """Refuse settings with which no group would ever be trained.

    Raises:
        ConfigError: a group of a single sample is dropped, or no number of groups makes the
            batch that this environment has to fill alone.
    """
    size = config.group_size
    if size == 1 and config.ensure_scores_are_not_same:
        raise ConfigError(
            "env.group_size 1: the scores of a group of one are equal, so every group would be"
            " dropped; raise --env.group_size, or set --env.ensure_scores_are_not_same false"
        )
    batch = int(variables.get(FILLS_BATCHES_OF) or 0)
    if batch and batch % size:
        raise ConfigError(
            f"env.group_size {size}: no number of groups makes a batch of {batch} sequences;"
            " make the trainer's batch_size x gradient_accumulation_steps a multiple"
        )


def only_checks(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether this process was started for the check of its settings alone."""
    return bool(variables.get(CHECK_ONLY))

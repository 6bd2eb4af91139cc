"""Environments: sample a model, score what it wrote, send groups to the rollout API.

from atroposlib.envs import environment               # a function is an environment
from atroposlib.envs import BaseEnv, BaseEnvConfig    # so is a class
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atroposlib.envs.base import (
        APIServerConfig,
        BaseEnv,
        BaseEnvConfig,
        ScoredDataGroup,
        ScoredDataItem,
        ServerBaseline,
    )
    from atroposlib.envs.function_env import Model, Reply, Reward, environment

__all__ = [
    "APIServerConfig",
    "BaseEnv",
    "BaseEnvConfig",
    "Model",
    "Reply",
    "Reward",
    "ScoredDataGroup",
    "ScoredDataItem",
    "ServerBaseline",
    "environment",
]
OF_FUNCTION_ENV = frozenset({"Model", "Reply", "Reward", "environment"})


def __getattr__(name: str) -> Any:
    # Lazy, so that importing a small module below this package stays cheap.
    if name in __all__:
        module = "function_env" if name in OF_FUNCTION_ENV else "base"
        return getattr(importlib.import_module(f"atroposlib.envs.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

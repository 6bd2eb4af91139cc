"""Environments: sample a model, score what it wrote, send groups to the rollout API.

from atroposlib.envs import BaseEnv, BaseEnvConfig
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

__all__ = [
    "APIServerConfig",
    "BaseEnv",
    "BaseEnvConfig",
    "ScoredDataGroup",
    "ScoredDataItem",
    "ServerBaseline",
]


def __getattr__(name: str) -> Any:
    # Lazy, so that importing one small module below this package stays cheap.
    if name in __all__:
        return getattr(importlib.import_module("atroposlib.envs.base"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

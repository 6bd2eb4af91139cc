"""The original's import path of :mod:`atroposlib.generation.engines.base`."""

from atroposlib.generation.engines.base import (
    VALID_REASONING_EFFORTS,
    APIServer,
    APIServerConfig,
    AsyncSemWithAdaptiveWeight,
    ReasoningConfig,
    ServerBaseline,
    ServerManagerConfig,
)

__all__ = [
    "APIServer",
    "APIServerConfig",
    "AsyncSemWithAdaptiveWeight",
    "ReasoningConfig",
    "ServerBaseline",
    "ServerManagerConfig",
    "VALID_REASONING_EFFORTS",
]

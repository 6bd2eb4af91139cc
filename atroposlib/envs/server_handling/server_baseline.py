"""The original's import path of :mod:`atroposlib.generation.engines.api_server`."""

from atroposlib.generation.engines.api_server import (
    VALID_REASONING_EFFORTS,
    APIServer,
    APIServerConfig,
    AsyncSemWithAdaptiveWeight,
    ReasoningConfig,
    ServerBaseline,
    ServerManagerConfig,
)

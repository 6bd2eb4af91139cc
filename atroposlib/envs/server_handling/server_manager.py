"""The original's import path of :mod:`atroposlib.generation.routing.manager`."""

from atroposlib.generation.routing.manager import (
    APIServer,
    APIServerConfig,
    ServerBaseline,
    ServerManager,
    ServerManagerConfig,
)

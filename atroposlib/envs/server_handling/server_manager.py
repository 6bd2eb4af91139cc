"""The original's import path of :mod:`atroposlib.generation.routing.manager`."""

from atroposlib.generation.configs import APIServerConfig, ServerBaseline, ServerManagerConfig
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.routing.manager import ServerManager

"""The original's import path of :mod:`atroposlib.generation.engines.trl`."""

from atroposlib.generation.configs import resolve_openai_configs
from atroposlib.generation.engines.trl import TrlVllmServer

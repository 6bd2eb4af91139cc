"""The original's import path of :mod:`atroposlib.generation.engines.trl`."""

from atroposlib.generation.engines.trl import TrlVllmServer

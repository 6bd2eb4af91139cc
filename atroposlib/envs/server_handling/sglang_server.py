"""The original's import path of :mod:`atroposlib.generation.engines.sglang`."""

from atroposlib.generation.configs import resolve_openai_configs
from atroposlib.generation.engines.sglang import SGLangServer

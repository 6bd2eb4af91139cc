"""The original's import path of :mod:`atroposlib.generation.engines.vllm`."""

from atroposlib.generation.configs import resolve_openai_configs
from atroposlib.generation.engines.vllm import VLLMServer

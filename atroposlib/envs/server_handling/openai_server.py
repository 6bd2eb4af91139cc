"""The original's import path of :mod:`atroposlib.generation.engines.openai`."""

from atroposlib.generation.engines.openai import (
    APIServerConfig,
    OpenaiConfig,
    OpenAIServer,
    resolve_openai_configs,
)

__all__ = [
    "APIServerConfig",
    "OpenAIServer",
    "OpenaiConfig",
    "resolve_openai_configs",
]

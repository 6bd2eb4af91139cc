"""The original's import path of the OpenAI client and of its settings."""

from atroposlib.generation.configs import APIServerConfig, OpenaiConfig, resolve_openai_configs
from atroposlib.generation.engines.openai import OpenAIServer

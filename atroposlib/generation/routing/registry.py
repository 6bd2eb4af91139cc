"""Which class speaks to which kind of server: one line per backend."""

from __future__ import annotations

from collections.abc import Callable

from atroposlib.errors import ConfigError
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.base import APIServer
from atroposlib.generation.engines.openai import OpenAIServer
from atroposlib.generation.engines.sglang import SGLangServer
from atroposlib.generation.engines.trl import TrlVllmServer
from atroposlib.generation.engines.vllm import VLLMServer
from atroposlib.generation.sampling.reasoning import ReasoningConfig

ServerFactory = Callable[[APIServerConfig, ReasoningConfig], APIServer]

BACKENDS: dict[str, ServerFactory] = {
    "openai": OpenAIServer,
    "vllm": VLLMServer,
    "sglang": SGLangServer,
    "trl": TrlVllmServer,
}


def backend_for(server_type: str) -> ServerFactory:
    """The class for one ``server_type``; servers of one manager may be of different kinds."""
    if server_type not in BACKENDS:
        raise ConfigError(
            f"server_type: {server_type} has no client here; one of {', '.join(BACKENDS)}"
        )
    return BACKENDS[server_type]

"""Which class speaks to which kind of server: one line per backend."""

from __future__ import annotations

from collections.abc import Callable

from atroposlib.envs.server_handling.configs import APIServerConfig
from atroposlib.envs.server_handling.openai_server import OpenAIServer
from atroposlib.envs.server_handling.reasoning import ReasoningConfig
from atroposlib.envs.server_handling.server_baseline import APIServer
from atroposlib.envs.server_handling.sglang_server import SGLangServer
from atroposlib.envs.server_handling.trl_vllm_server import TrlVllmServer
from atroposlib.envs.server_handling.vllm_server import VLLMServer
from atroposlib.errors import ConfigError

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

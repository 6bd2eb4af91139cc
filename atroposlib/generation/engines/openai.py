"""Hosted and local servers of which only the OpenAI protocol is known: text, no tokens."""

from __future__ import annotations

from typing import Any

from atroposlib.generation.configs import (
    APIServerConfig,
    OpenaiConfig,
    resolve_openai_configs,
)
from atroposlib.generation.engines.openai_base import OpenAICompatibleServer

__all__ = ["APIServerConfig", "OpenAIServer", "OpenaiConfig", "resolve_openai_configs"]


class OpenAIServer(OpenAICompatibleServer):
    """Any OpenAI-compatible API. Good for evaluation and data generation.

    It returns no token ids, so its completions cannot be trained on token-exactly.
    """

    returns_tokens = False

    async def _tokens_and_logprobs_completion_wrapper(
        self, **kwargs: Any
    ) -> tuple[list[int], list[list[int]], list[list[float]], list[Any]]:
        raise NotImplementedError(
            "OpenAIServer returns no token ids or logprobs; "
            "use server_type vllm, sglang or trl for rows that are trained on"
        )

"""What the token backends share: a tokenizer, loaded only when text has to be encoded."""

from __future__ import annotations

import asyncio
from typing import Any

from atroposlib.envs.server_handling.configs import APIServerConfig
from atroposlib.envs.server_handling.generation import Generation, four_tuple
from atroposlib.envs.server_handling.openai_path import OpenAICompatibleServer
from atroposlib.envs.server_handling.reasoning import ReasoningConfig
from atroposlib.envs.server_handling.sampling import prompt_ids
from atroposlib.errors import ConfigError, TokensMissing


class TokenServer(OpenAICompatibleServer):
    """A backend that takes token ids and returns token ids with logprobs."""

    accepts_reasoning = False

    def __init__(
        self, config: APIServerConfig, reasoning_config: ReasoningConfig | None = None
    ) -> None:
        if not config.base_url:
            raise ConfigError(
                f"base_url: a server of type {config.server_type} needs an address, "
                "such as http://localhost:9001/v1"
            )
        super().__init__(config, reasoning_config)
        self._tokenizer: Any = None

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of ``tokenizer_name``, else of ``model_name``; loaded when first read."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self.config)
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    async def _prompt_ids(self, kwargs: dict[str, Any]) -> list[int]:
        if kwargs.get("input_ids") is None and self._tokenizer is None:
            await asyncio.to_thread(lambda: self.tokenizer)  # seconds: not on the event loop
        return prompt_ids(kwargs, self._tokenizer)

    async def _tokens_and_logprobs_completion_wrapper(
        self, **kwargs: Any
    ) -> tuple[list[int], list[list[int]], list[list[float]], list[Any]]:
        ids = await self._prompt_ids(kwargs)
        return four_tuple(await self._generate_wrapper(**{**kwargs, "input_ids": ids}))


def load_tokenizer(config: APIServerConfig) -> Any:
    """AutoTokenizer of the config; ConfigError names the setting that would help."""
    from transformers import AutoTokenizer

    named = config.tokenizer_name not in ("", "none")
    name = config.tokenizer_name if named else config.model_name
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as cause:
        raise ConfigError(
            f"tokenizer_name: no tokenizer can be loaded from {name!r}; "
            "name a model or a directory that has one"
        ) from cause


def expect_outputs(outputs: list[Generation], n: int, where: str) -> list[Generation]:
    if len(outputs) != n:
        raise TokensMissing(f"{where}: {len(outputs)} outputs where n={n} was asked")
    return outputs

"""What the token backends share: a tokenizer, loaded only when text has to be encoded."""

from __future__ import annotations

import asyncio
from typing import Any

from atroposlib.errors import ConfigError, TokensMissing
from atroposlib.generation.chat.tokenizer import load_tokenizer
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.openai_base import OpenAICompatibleServer
from atroposlib.generation.sampling.params import prompt_ids
from atroposlib.generation.sampling.reasoning import ReasoningConfig
from atroposlib.generation.sampling.resume import Decode
from atroposlib.generation.sampling.types import Generation, four_tuple

__all__ = ["TokenServer", "expect_outputs", "load_tokenizer", "take_top_k"]


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

    def offer_tokenizer(self, tokenizer: Any) -> None:
        """Use this one unless there is one already, so that none has to be loaded."""
        if self._tokenizer is None:
            self._tokenizer = tokenizer

    async def tokens_and_logprobs_completion(
        self, **kwargs: Any
    ) -> tuple[list[int], list[list[int]], list[list[float]], list[Any]]:
        """As the base class; a continuation cut short for new weights is resumed."""
        ids = await self._prompt_ids(kwargs)
        return four_tuple(await self.generate(**{**kwargs, "input_ids": ids}))

    async def decoder(self) -> Decode:
        await self._load_tokenizer()
        return lambda ids: str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    async def _load_tokenizer(self) -> None:
        if self._tokenizer is None:
            await asyncio.to_thread(lambda: self.tokenizer)  # seconds: not on the event loop

    async def _prompt_ids(self, kwargs: dict[str, Any]) -> list[int]:
        """The ids to send; a tokenizer is loaded only where one is needed to tell."""
        given = kwargs.get("input_ids")
        if given is None or (len(given) > 1 and given[0] == given[1]):
            await self._load_tokenizer()
        return prompt_ids(kwargs, self._tokenizer)

    async def _tokens_and_logprobs_completion_wrapper(
        self, **kwargs: Any
    ) -> tuple[list[int], list[list[int]], list[list[float]], list[Any]]:
        ids = await self._prompt_ids(kwargs)
        return four_tuple(await self._generate_wrapper(**{**kwargs, "input_ids": ids}))


def expect_outputs(outputs: list[Generation], n: int, where: str) -> list[Generation]:
    if len(outputs) != n:
        raise TokensMissing(f"{where}: {len(outputs)} outputs where n={n} was asked")
    return outputs


def take_top_k(kwargs: dict[str, Any]) -> int:
    """How many alternatives per position ``get_logprobs`` is asked for; 0: only its own.

    ``top_k`` is not the sampling parameter here, so it is taken out.
    """
    asked = (kwargs.pop("top_k", None), kwargs.pop("top_logprobs", None))
    return max(0, int(next((k for k in asked if k is not None), 1)))

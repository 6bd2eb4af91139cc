"""Chat and text completions over the OpenAI protocol, for every server that speaks it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atroposlib.errors import ConfigError, InferenceUnavailable
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.base import APIServer
from atroposlib.generation.sampling.params import request_options, with_choice_seed
from atroposlib.generation.sampling.reasoning import ReasoningConfig
from atroposlib.utils.gathering import gather_or_cancel

if TYPE_CHECKING:
    from openai.types import Completion
    from openai.types.chat import ChatCompletion

logger = logging.getLogger(__name__)
Payload = dict[str, Any]


def request_body(kwargs: Mapping[str, Any]) -> Payload:
    """The JSON body of keyword arguments as the openai package takes them.

    ``extra_body`` is merged in; what only a client would use is left out. ``stream`` is
    refused: a call returns a whole completion.
    """
    if kwargs.get("stream"):
        raise ConfigError("stream: completions are returned whole; leave it out")
    client_only = ("extra_body", "extra_headers", "extra_query", "timeout", "stream")
    body = {k: v for k, v in kwargs.items() if k not in client_only and v is not None}
    return {**body, **(kwargs.get("extra_body") or {})}


def merge_choices(payloads: list[Payload]) -> Payload:
    """One completion out of several of the same prompt: choices renumbered, usage summed."""
    merged = dict(payloads[0])
    choices = [choice for payload in payloads for choice in payload["choices"]]
    merged["choices"] = [{**choice, "index": i} for i, choice in enumerate(choices)]
    usages = [payload["usage"] for payload in payloads if payload.get("usage")]
    if usages:
        merged["usage"] = {
            name: sum(int(usage.get(name) or 0) for usage in usages)
            for name in ("prompt_tokens", "completion_tokens", "total_tokens")
        }
    return merged


class OpenAICompatibleServer(APIServer):
    """Base of the backends whose chat and completions are OpenAI's.

    Requests go over the same connections as everything else of the server; the openai
    package only supplies the response types, imported at the first response because that
    takes about a second.
    """

    def __init__(
        self, config: APIServerConfig, reasoning_config: ReasoningConfig | None = None
    ) -> None:
        super().__init__(config, reasoning_config)
        self.n_is_ignored = config.n_kwarg_is_ignored

    async def _chat_completion_wrapper(self, **kwargs: Any) -> ChatCompletion:
        payload = await self._complete("chat/completions", kwargs)
        return chat_completion_of(payload)

    async def _completion_wrapper(self, **kwargs: Any) -> Completion:
        payload = await self._complete("completions", kwargs)
        return completion_of(payload)

    async def _complete(self, path: str, kwargs: Mapping[str, Any]) -> Payload:
        """A payload with ``n`` choices, whatever the server makes of ``n``."""
        body = request_body(kwargs)
        n = int(body.get("n") or 1)

        async def ask(count: int, first: int = 0) -> Payload:
            sent = {**with_choice_seed(body, first), "n": count} if "n" in body else body
            return await self._ask_choices(path, sent, kwargs)

        if n > 1 and self.n_is_ignored:
            return merge_choices(await gather_or_cancel(ask(1, i) for i in range(n)))
        first = await ask(n)
        returned = len(first["choices"])
        if returned == n:
            return first
        if returned != 1:
            raise ConfigError(
                f"{self.root_url} answered {returned} choices where n={n} was asked; "
                "set n_kwarg_is_ignored true for this server"
            )
        logger.warning("%s ignores n: sending one request per choice from now", self.root_url)
        self.n_is_ignored = True
        rest = await gather_or_cancel(ask(1, i) for i in range(1, n))
        return merge_choices([first, *rest])

    async def _ask_choices(
        self, path: str, body: Payload, kwargs: Mapping[str, Any]
    ) -> Payload:
        if self.is_official_openai and not self.http.headers:
            raise ConfigError(
                "api_key: the official OpenAI API needs one; set it or OPENAI_API_KEY, "
                "or set base_url to the server that is meant"
            )
        url = f"{self.base_url}/{path}"
        reply = await self.http.post(url, body, **request_options(kwargs))
        if not isinstance(reply.payload, dict) or not reply.payload.get("choices"):
            raise InferenceUnavailable(f"{url}: the answer has no choices")
        if any(choice.get("finish_reason") == "abort" for choice in reply.payload["choices"]):
            # Text cannot be gone on with token by token; a torso must not pass for an answer.
            raise InferenceUnavailable(f"{url}: aborted, as when the server gets new weights")
        return reply.payload


def chat_completion_of(payload: Payload) -> ChatCompletion:
    """The openai package's type, unvalidated: servers add fields and leave some out."""
    from openai.types.chat import ChatCompletion

    return ChatCompletion.model_construct(**payload)


def completion_of(payload: Payload) -> Completion:
    """As :func:`chat_completion_of`, for text completions."""
    from openai.types import Completion

    return Completion.model_construct(**payload)

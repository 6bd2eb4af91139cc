"""Versions of a model that a server keeps under the names NAME@VERSION, and their clients.

GET /v1/models  ->  policy, policy@10, policy@20      our server, vLLM and SGLang with adapters
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from atroposlib.errors import InferenceUnavailable
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.engines.http import model_cards
from atroposlib.generation.engines.openai import OpenAICompatibleServer
from atroposlib.generation.engines.sglang import SGLangServer
from atroposlib.generation.engines.vllm import CompletionsRoute, TokenRoute, VLLMServer
from atroposlib.generation.sampling.generation import Generation
from atroposlib.utils.models.version_names import named_version


class VersionedServer(VLLMServer):
    """A version on a vLLM server or ours; only the route of completions takes a model's name."""

    async def _token_route(self) -> TokenRoute:
        return CompletionsRoute()


class VersionedSGLang(SGLangServer):
    """A version on an SGLang server, where it is an adapter."""

    async def _generate_wrapper(self, **kwargs: Any) -> list[Generation]:
        return await super()._generate_wrapper(**kwargs, lora_path=self.config.model_name)


CLIENTS: dict[type[APIServer], type[APIServer]] = {
    VLLMServer: VersionedServer,
    SGLangServer: VersionedSGLang,
}


async def listed_versions(server: APIServer) -> dict[int, str]:
    """Names of the versions that a server lists; none if it does not answer."""
    cards: list[dict[str, Any]] = []
    with suppress(InferenceUnavailable):
        cards = await model_cards(server._parts.http, server._parts.root_url)
    names = [str(card.get("id")) for card in cards]
    return {version: name for name in names if (version := named_version(name)) is not None}


def version_client(server: APIServer, name: str) -> APIServer:
    """A client for the version ``name`` on the same server."""
    config = server.config.model_copy(update={"model_name": name})
    client = CLIENTS.get(type(server), type(server))(config, server.reasoning_config)
    client.announced_version = named_version(name)
    if isinstance(client, OpenAICompatibleServer):
        client.identified = True  # a name that has left the list is refused at the request
    return client

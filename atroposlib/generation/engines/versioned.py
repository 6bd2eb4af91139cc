"""Versions of a model that a server keeps under the names NAME@VERSION, and their clients.

GET /v1/models  ->  policy, policy@10, policy@20      our server, vLLM and SGLang with adapters
"""

from __future__ import annotations

from contextlib import suppress

from atroposlib.errors import InferenceUnavailable
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.engines.openai import OpenAICompatibleServer
from atroposlib.generation.engines.sglang import SGLangServer
from atroposlib.generation.engines.vllm import CompletionsRoute, TokenRoute, VLLMServer
from atroposlib.utils.models.version_names import named_version


class VersionedServer(VLLMServer):
    """A version on a vLLM server or ours; only the route of completions takes a model's name."""

    async def _token_route(self) -> TokenRoute:
        return CompletionsRoute()


async def listed_versions(server: APIServer) -> dict[int, str]:
    """Names of the versions that a server lists; none if it does not answer."""
    cards = None
    with suppress(InferenceUnavailable):
        url = f"{server._parts.root_url}/v1/models"
        cards = await server._parts.http.field("GET", url, "data")
    names = [str(card.get("id")) for card in cards or () if isinstance(card, dict)]
    return {version: name for name in names if (version := named_version(name)) is not None}


def version_client(server: APIServer, name: str) -> APIServer:
    """A client for the version ``name`` on the same server."""
    update: dict[str, object] = {"model_name": name}
    if isinstance(server, SGLangServer):  # its route of tokens takes the name of an adapter
        own = {"lora_path": name}
        update["sampling"] = {**server.config.sampling, **own}
        update["eval_sampling"] = {**server.config.eval_sampling, **own}
    kind = VersionedServer if isinstance(server, VLLMServer) else type(server)
    client = kind(server.config.model_copy(update=update), server.reasoning_config)
    client.announced_version = named_version(name)
    if isinstance(client, OpenAICompatibleServer):
        client.identified = True  # it was listed; one that has left is refused by its name
    return client

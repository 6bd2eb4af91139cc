"""Model and tokenizer from the inference server, where flags, YAML and config_init name none.

Names that are given are compared with the server. The last resort is the class default.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from atroposlib.envs.settings.config import BaseEnvConfig
from atroposlib.errors import InferenceUnavailable
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.engines.openai import OpenAICompatibleServer, TokenServer
from atroposlib.utils.tokenizers.loading import load_tokenizer_named

logger = logging.getLogger(__name__)


async def named_by_servers(
    config: BaseEnvConfig, servers: Sequence[APIServer], *, wait: bool
) -> tuple[BaseEnvConfig, Any]:
    """``config`` with the tokenizer of the served model; and that tokenizer, or None.

    ``wait`` for a server if none answers; a tokenizer that is not named is always waited for.
    """
    named = "tokenizer_name" in config.model_fields_set
    asked = [server for server in servers if isinstance(server, OpenAICompatibleServer)]
    tokens = [server for server in asked if isinstance(server, TokenServer)]
    for server in asked:
        try:
            await server.identify()
        except InferenceUnavailable:
            logger.info("%s does not answer; %s", server.root_url, server.health.remedy)
    if not any(server.identified for server in asked) and (wait or (tokens and not named)):
        await asked[0].health.wait_until_healthy()
    found = [server.directory for server in asked if server.directory]
    if found and not named:
        logger.info("tokenizer of the served model: %s", found[0])
        config = config.model_copy(update={"tokenizer_name": found[0]})
    elif tokens and not named:
        logger.warning("no server names a tokenizer: default %s", config.tokenizer_name)
    if not tokens or not (found or named):
        return config, None
    tokenizer = load_tokenizer_named(config.tokenizer_name)
    for server in tokens:
        await server.require_tokenizer(tokenizer, config.tokenizer_name)
    return config, tokenizer

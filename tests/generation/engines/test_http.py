"""Addresses and answers of the HTTP client."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError
from atroposlib.generation.engines.api_server import APIServerConfig
from atroposlib.generation.engines.http import server_root
from atroposlib.generation.engines.openai import OpenAIServer

HELLO = [{"role": "user", "content": "hello"}]


def test_only_a_trailing_v1_is_removed_from_the_server_root() -> None:
    assert server_root("http://v1.example/v1/models/v1/") == "http://v1.example/v1/models"
    assert server_root("http://host:9001") == "http://host:9001"


async def test_an_address_that_is_not_a_url_is_a_config_error() -> None:
    server = OpenAIServer(APIServerConfig(base_url="localhost:9001/v1"))
    with pytest.raises(ConfigError, match="base_url"):
        await server.chat_completion(messages=HELLO)
    await server.close()

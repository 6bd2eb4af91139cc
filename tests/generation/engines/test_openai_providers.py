"""Calls of real providers: ``pytest --runproviders``, with the key of one in its variable.

The variables are those of the package openai, so that ``OPENAI_BASE_URL`` names another address.
"""

from __future__ import annotations

import os

import pytest

from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.routing.manager import ServerManager
from atroposlib.generation.sampling.reasoning import ReasoningConfig

pytestmark = pytest.mark.providers
PROVIDERS = {  # variable of the key -> address, a small model, one that reasons
    "OPENAI_API_KEY": ("https://api.openai.com/v1", "gpt-4.1-nano", "gpt-5-nano"),
    "OPENROUTER_API_KEY": (
        "https://openrouter.ai/api/v1",
        "openai/gpt-4.1-nano",
        "openai/gpt-5-nano",
    ),
}
QUESTION = [{"role": "user", "content": "What is 2 + 2? Answer with the number only."}]


@pytest.fixture(params=PROVIDERS)
def provider(request):
    if not (key := os.environ.get(request.param)):
        pytest.skip(f"{request.param} is not set")
    address, plain, reasoning = PROVIDERS[request.param]
    if request.param == "OPENAI_API_KEY":
        address = os.environ.get("OPENAI_BASE_URL", address)
    return {"base_url": address, "api_key": key, "timeout": 120}, plain, reasoning


async def answers(settings, model, reasoning=None, **call):
    config = APIServerConfig(model_name=model, **settings)
    server = ServerManager([config], reasoning_config=reasoning)
    try:
        completion = await server.chat_completion(messages=QUESTION, **call)
    finally:
        await server.close()
    return [choice.message.content for choice in completion.choices]


async def test_several_answers_of_one_call(provider):
    settings, model, _ = provider
    found = await answers(settings, model, n=2, max_tokens=16)
    assert len(found) == 2 and all("4" in answer for answer in found)


async def test_a_reasoning_model_takes_the_settings_of_reasoning(provider):
    settings, _, model = provider
    low = ReasoningConfig(effort="low")
    [answer] = await answers(settings, model, low, split="eval", max_tokens=2000)
    assert "4" in answer

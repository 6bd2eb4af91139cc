"""Test server with prepared answers."""

from __future__ import annotations

import pytest

from atroposlib.errors import ConfigError, InferenceRefused
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.harness import (
    ServerHarness,
    create_chat_completion,
    create_completion,
)
from atroposlib.generation.routing.manager import ServerManager

FOUR = ([1, 2], [[3, 4]], [[-0.5, -0.25]], ["stop"])
CONFIG = APIServerConfig(base_url="http://nowhere.invalid/v1", model_name="m", timeout=5)
HELLO = [{"role": "user", "content": "hello"}]


async def test_testing_uses_a_server_of_prepared_responses() -> None:
    manager = ServerManager([APIServerConfig(base_url="http://a/v1")], testing=True)
    (harness,) = manager.servers
    assert isinstance(harness, ServerHarness)
    harness.set_desired_response(HELLO, create_chat_completion("hi", n=2))
    harness.set_desired_completion("2+2=", create_completion("4"))
    harness.set_tokens_and_logprobs_response("a", [1], [[2]], [[-0.5]], ["stop"])
    chat = await manager.chat_completion(messages=HELLO, n=2)
    assert [choice.message.content for choice in chat.choices] == ["hi", "hi"]
    assert (await manager.completion(prompt="2+2=")).choices[0].text == "4"
    answer = await manager.tokens_and_logprobs_completion(prompt="a")
    assert answer == ([1], [[2]], [[-0.5]], ["stop"])


async def test_the_harness_raises_for_an_unprepared_prompt() -> None:
    with pytest.raises(InferenceRefused, match="no response is prepared.*role:user"):
        await ServerHarness().chat_completion(messages=HELLO)


async def test_a_configuration_with_one_setting_has_the_defaults_of_the_others() -> None:
    class Config:
        model_name = "mine"

    harness = ServerHarness(Config())
    assert (harness.config.model_name, harness.config.timeout) == ("mine", 1200)
    harness = ServerHarness()
    harness.config = Config()
    harness.set_tokens_and_logprobs_response("a", *FOUR)
    (output,) = await harness.generate([1, 2], prompt="a")
    assert output.tokens == FOUR[1][0]


async def test_the_harness_answers_tokens_by_prompt_text() -> None:
    manager = ServerManager([CONFIG], testing=True)
    (harness,) = manager.servers
    assert isinstance(harness, ServerHarness)
    harness.set_tokens_and_logprobs_response("a", *FOUR)
    (output,) = await manager.generate([1, 2], prompt="a")
    assert output.tokens == FOUR[1][0]
    with pytest.raises(ConfigError, match="pass prompt"):
        await manager.generate([1, 2])
    metrics = await manager.wandb_metrics({})
    assert metrics["server/server_0_average_num_attempts"] == 1.0

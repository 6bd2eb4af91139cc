from __future__ import annotations

import pytest

from atroposlib.errors import (
    ConfigError,
    InferenceRefused,
    InferenceUnavailable,
)
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.openai import OpenAIServer
from atroposlib.generation.sampling.reasoning import ReasoningConfig
from atroposlib.generation.sessions.managed import ManagedServer
from atroposlib.testing.tiny import char_tokenizer

HELLO = [{"role": "user", "content": "hello"}]


async def test_a_chat_completion_has_the_type_of_the_openai_package(connect, fake) -> None:
    server = connect(model_name="served")
    fake.reply = lambda prompt, i: f"answer {i}"
    completion = await server.chat_completion(
        messages=HELLO, n=2, model="ignored", extra_body={"min_p": 0.1}, stop=None
    )
    texts = [choice.message.content for choice in completion.choices]
    assert texts == ["answer 0", "answer 1"]
    (_, body), *_ = fake.requests
    assert body == {"messages": HELLO, "n": 2, "model": "served", "min_p": 0.1}


async def test_sampling_of_the_config_reaches_every_kind_of_request(connect, fake) -> None:
    sampling = {"top_p": 0.5, "max_tokens": 3}
    server = connect("vllm", sampling=sampling)
    await server.chat_completion(messages=HELLO)
    await server.completion(prompt="abc", max_tokens=8)
    await ManagedServer(server, char_tokenizer()).completion(prompt="abc", max_tokens=8)
    for path, body in fake.requests:
        assert {name: body[name] for name in sampling} == sampling, path
    assert len(fake.requests) == 3


async def test_a_text_completion_returns_the_sampled_text(connect, fake) -> None:
    fake.reply = lambda prompt, i: prompt[::-1]
    completion = await connect().completion(prompt="abc", max_tokens=8)
    assert completion.choices[0].text == "cba"


async def test_a_server_that_ignores_n_gets_one_request_per_choice(connect, fake) -> None:
    fake.ignores_n = True
    server = connect()
    first = await server.chat_completion(messages=HELLO, n=3)
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert [body["n"] for _, body in fake.requests] == [3, 1, 1]
    await server.chat_completion(messages=HELLO, n=2)
    assert [body["n"] for _, body in fake.requests[3:]] == [1, 1]


async def test_n_of_one_sends_one_request_even_to_a_server_that_ignores_n(
    connect, fake
) -> None:
    await connect(n_kwarg_is_ignored=True).chat_completion(messages=HELLO, n=1)
    assert len(fake.requests) == 1


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_a_transient_failure_is_retried(connect, fake, status: int) -> None:
    fake.fail_next.extend([status, status])
    server = connect()
    await server.chat_completion(messages=HELLO)
    assert len(fake.requests) == 3
    assert list(server.attempts_list) == [3]


async def test_an_aborted_text_completion_is_requested_again(connect, fake) -> None:
    fake.abort_next.append(3)
    fake.reply = lambda prompt, i: "whole"
    completion = await connect().chat_completion(messages=HELLO)
    assert completion.choices[0].message.content == "whole" and len(fake.requests) == 2


async def test_three_failed_attempts_raise_with_the_reason_of_the_last(connect, fake) -> None:
    fake.fail_next.extend([500] * 9)
    with pytest.raises(InferenceUnavailable, match="3 attempts failed.*status 500.*scripted"):
        await connect().chat_completion(messages=HELLO)
    assert len(fake.requests) == 3


async def test_a_rejection_is_not_retried(connect, fake) -> None:
    fake.fail_next.append(400)
    with pytest.raises(InferenceRefused, match="refused .400.*as scripted"):
        await connect().chat_completion(messages=HELLO)
    assert len(fake.requests) == 1


async def test_a_programming_error_is_not_retried(connect) -> None:
    server = connect()
    attempts = 0

    async def broken(**kwargs: object) -> None:
        nonlocal attempts
        attempts += 1
        raise KeyError("a typo")

    server._chat_completion_wrapper = broken
    with pytest.raises(KeyError, match="a typo"):
        await server.chat_completion(messages=HELLO)
    assert attempts == 1


async def test_reasoning_fields_are_sent_in_chats_only_and_can_be_skipped(
    connect, fake
) -> None:
    server = connect(reasoning=ReasoningConfig(effort="low"))
    await server.chat_completion(messages=HELLO)
    await server.chat_completion(messages=HELLO, skip_reasoning=True)
    await server.completion(prompt="hi")
    sent = [body.get("reasoning") for _, body in fake.requests]
    assert sent == [{"enabled": True, "effort": "low"}, None, None]


async def test_a_token_request_to_a_text_only_server_raises_with_the_remedy(connect) -> None:
    with pytest.raises(NotImplementedError, match="use server_type vllm, sglang"):
        await connect().tokens_and_logprobs_completion(prompt="hi")
    with pytest.raises(NotImplementedError, match="does not implement get_logprobs"):
        await connect().get_logprobs(prompt="hi")


async def test_the_official_api_without_a_key_raises_before_any_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="api_key: the official OpenAI API requires one"):
        await OpenAIServer(APIServerConfig()).chat_completion(messages=HELLO)

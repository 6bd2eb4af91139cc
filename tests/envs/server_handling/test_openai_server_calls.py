from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from atroposlib.errors import ConfigError, InferenceRefused, InferenceUnavailable
from atroposlib.generation.engines import health
from atroposlib.generation.engines.api_server import APIServerConfig, ReasoningConfig
from atroposlib.generation.engines.health import HealthState
from atroposlib.generation.engines.http import server_root
from atroposlib.generation.engines.openai import OpenAIServer
from atroposlib.testing.fake_inference import FakeInference

HELLO = [{"role": "user", "content": "hello"}]


def test_only_a_trailing_v1_is_not_part_of_the_root() -> None:
    assert server_root("http://v1.example/v1/models/v1/") == "http://v1.example/v1/models"
    assert server_root("http://host:9001") == "http://host:9001"


async def test_a_chat_comes_back_as_the_openai_package_types_it(connect, fake) -> None:
    server = connect(model_name="served")
    fake.reply = lambda prompt, i: f"answer {i}"
    completion = await server.chat_completion(
        messages=HELLO, n=2, model="ignored", extra_body={"min_p": 0.1}, stop=None
    )
    texts = [choice.message.content for choice in completion.choices]
    assert texts == ["answer 0", "answer 1"]
    (_, body), *_ = fake.requests
    assert body == {"messages": HELLO, "n": 2, "model": "served", "min_p": 0.1}


async def test_a_text_completion_comes_back(connect, fake) -> None:
    fake.reply = lambda prompt, i: prompt[::-1]
    completion = await connect().completion(prompt="abc", max_tokens=8)
    assert completion.choices[0].text == "cba"


async def test_a_server_that_ignores_n_is_asked_once_per_choice(connect, fake) -> None:
    fake.ignores_n = True
    server = connect()
    first = await server.chat_completion(messages=HELLO, n=3)
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert [body["n"] for _, body in fake.requests] == [3, 1, 1]
    await server.chat_completion(messages=HELLO, n=2)
    assert [body["n"] for _, body in fake.requests[3:]] == [1, 1]


async def test_n_of_one_is_one_request_even_where_n_is_ignored(connect, fake) -> None:
    await connect(n_kwarg_is_ignored=True).chat_completion(messages=HELLO, n=1)
    assert len(fake.requests) == 1


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_a_passing_failure_is_tried_again(connect, fake, status: int) -> None:
    fake.fail_next.extend([status, status])
    server = connect()
    await server.chat_completion(messages=HELLO)
    assert len(fake.requests) == 3
    assert list(server.attempts_list) == [3]


async def test_a_text_cut_short_for_new_weights_is_asked_for_again(connect, fake) -> None:
    fake.abort_next.append(3)
    fake.reply = lambda prompt, i: "whole"
    completion = await connect().chat_completion(messages=HELLO)
    assert completion.choices[0].message.content == "whole" and len(fake.requests) == 2


async def test_three_failures_are_the_end_and_say_the_last_reason(connect, fake) -> None:
    fake.fail_next.extend([500] * 9)
    with pytest.raises(InferenceUnavailable, match="3 attempts failed.*status 500.*scripted"):
        await connect().chat_completion(messages=HELLO)
    assert len(fake.requests) == 3


async def test_a_refusal_is_not_tried_again(connect, fake) -> None:
    fake.fail_next.append(400)
    with pytest.raises(InferenceRefused, match="refused .400.*as scripted"):
        await connect().chat_completion(messages=HELLO)
    assert len(fake.requests) == 1


async def test_a_programming_error_is_not_tried_again(connect) -> None:
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


def test_backoff_doubles_up_to_its_cap_and_spreads_callers() -> None:
    assert [health.backoff_s(n, 1.0) for n in (1, 2, 3, 9)] == [0.5, 1.0, 2.0, 10.0]
    assert health.backoff_s(1, 0.0) == 0.25


async def test_health_is_asked_once_and_costs_no_generation(connect, fake) -> None:
    server = connect()
    for _ in range(3):
        await server.chat_completion(messages=HELLO)
    assert fake.health_checks == 1 and len(fake.requests) == 3


async def test_without_health_checks_nothing_is_asked(connect, fake) -> None:
    await connect(health_check=False).chat_completion(messages=HELLO)
    assert fake.health_checks == 0


async def test_a_burst_of_first_calls_asks_for_health_once(connect, fake) -> None:
    server = connect()
    await asyncio.gather(*(server.chat_completion(messages=HELLO) for _ in range(20)))
    assert fake.health_checks == 1


async def test_a_call_waits_for_a_server_that_is_still_loading(connect, fake) -> None:
    fake.health_next.extend([False, False])
    server = connect()
    await server.chat_completion(messages=HELLO)
    assert fake.health_checks == 3 and server.health.waiting_on is None


async def test_a_dead_server_is_given_up_with_its_name(no_backoff) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        root = f"http://127.0.0.1:{unused.getsockname()[1]}"
    server = OpenAIServer(APIServerConfig(base_url=f"{root}/v1", timeout=1))
    with pytest.raises(
        InferenceUnavailable, match=f"{root} did not answer GET /health for 1 s"
    ):
        await server.chat_completion(messages=HELLO)
    assert not server.server_healthy
    assert root in (server.health.waiting_on or "")
    await server.close()


async def test_a_server_that_restarts_during_a_call_costs_a_wait_not_the_call(
    no_backoff, fake
) -> None:
    with fake.running() as root:
        port = int(root.rsplit(":", 1)[1])
        server = OpenAIServer(APIServerConfig(base_url=f"{root}/v1", timeout=20))
        await server.chat_completion(messages=HELLO)
    pending = asyncio.ensure_future(server.chat_completion(messages=HELLO))
    while server.health.state is not HealthState.DOWN:
        await asyncio.sleep(0)
    with FakeInference(reply=lambda prompt, i: "back").running(port):
        assert (await pending).choices[0].message.content == "back"
        await server.close()


async def test_train_and_eval_calls_have_slots_of_their_own(connect, fake) -> None:
    server = connect(num_max_requests_at_once=2, num_requests_for_eval=1)
    fake.hold = threading.Event()
    train = [asyncio.ensure_future(server.chat_completion(messages=HELLO)) for _ in range(4)]
    evals = [
        asyncio.ensure_future(server.chat_completion(messages=HELLO, split="eval"))
        for _ in range(3)
    ]
    while fake.running_now < 3:
        await asyncio.sleep(0.001)
    assert (server.sem.in_use, server.sem.waiting) == (2, 2)
    assert (server.eval_sem.in_use, server.eval_sem.waiting) == (1, 2)
    assert (server.headroom("train"), server.headroom("eval")) == (-2, -2)
    fake.hold.set()
    await asyncio.gather(*train, *evals)
    assert fake.most_at_once == 3
    assert (len(server.request_timings), len(server.eval_request_timings)) == (4, 3)


async def test_timings_are_kept_up_to_the_rolling_length(connect, fake) -> None:
    server = connect(rolling_buffer_length=2)
    fake.fail_next.append(500)
    for _ in range(3):
        await server.chat_completion(messages=HELLO)
    assert list(server.attempts_list) == [1, 1]
    metrics = await server.wandb_metrics({"kept": 1}, "server_0")
    assert metrics["kept"] == 1 and metrics["server/server_0_average_num_attempts"] == 1
    assert metrics["server/server_0_request_time_99p"] == max(server.request_timings)
    assert not any("eval" in name for name in metrics)


async def test_thinking_is_asked_for_in_chats_only_and_can_be_skipped(connect, fake) -> None:
    server = connect(reasoning=ReasoningConfig(effort="low"))
    await server.chat_completion(messages=HELLO)
    await server.chat_completion(messages=HELLO, skip_reasoning=True)
    await server.completion(prompt="hi")
    sent = [body.get("reasoning") for _, body in fake.requests]
    assert sent == [{"enabled": True, "effort": "low"}, None, None]


async def test_tokens_of_a_text_only_server_are_refused_with_what_to_do(connect) -> None:
    with pytest.raises(NotImplementedError, match="use server_type vllm, sglang"):
        await connect().tokens_and_logprobs_completion(prompt="hi")
    with pytest.raises(NotImplementedError, match="does not implement get_logprobs"):
        await connect().get_logprobs(prompt="hi")


async def test_the_official_api_without_a_key_is_refused_before_it_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="api_key: the official OpenAI API needs one"):
        await OpenAIServer(APIServerConfig()).chat_completion(messages=HELLO)


async def test_an_address_that_is_no_url_is_a_config_error() -> None:
    server = OpenAIServer(APIServerConfig(base_url="localhost:9001/v1"))
    with pytest.raises(ConfigError, match="base_url"):
        await server.chat_completion(messages=HELLO)
    await server.close()

"""Calls of judges: which requests count, by which clients, and the bound."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from openai import AsyncOpenAI

from atroposlib.errors import boundary
from atroposlib.validation.judges import JudgeCalls, JudgeCallsSpent, judge_counter, model_in

CHAT = "http://judge:9/v1/chat/completions"


def test_posts_to_models_count_and_the_policy_does_not():
    calls = JudgeCalls(9, lambda: ["http://policy:1/v1"])
    calls.note("POST", CHAT, b'{"model": "small"}')
    calls.note("POST", "http://policy:1/v1/chat/completions", b"{}")
    calls.note("GET", CHAT, b"")
    calls.note("POST", "http://judge:9/metrics", b"")
    assert (calls.count, calls.left, calls.addresses()) == (1, 8, "judge:9 small 1")
    assert model_in(b"no json") == ""


def test_the_call_after_the_last_is_not_sent_and_names_the_flag():
    calls = JudgeCalls(1)
    calls.note("POST", CHAT, b"")
    with pytest.raises(JudgeCallsSpent, match=r"more than 1 calls .*--max-judge-calls 2"):
        calls.note("POST", CHAT, b"")
    assert calls.count == 1


def answering(request):
    message = {"role": "assistant", "content": "7"}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    body = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
    return httpx.Response(200, json={**body, "choices": [choice]})


async def test_clients_of_this_process_are_counted_and_no_except_hides_the_bound(
    unused_tcp_port,
):
    base = f"http://127.0.0.1:{unused_tcp_port}/v1"
    with judge_counter(JudgeCalls(2)) as calls:
        async with httpx.AsyncClient(transport=httpx.MockTransport(answering)) as client:
            await client.post(CHAT, json={"model": "small"})
        with httpx.Client(transport=httpx.MockTransport(answering)) as client:
            await asyncio.to_thread(client.post, CHAT, json={"model": "small"})
        async with AsyncOpenAI(base_url=base, api_key="none", max_retries=2) as judge:
            with pytest.raises(JudgeCallsSpent), boundary("env", "1", "reward"):
                await judge.chat.completions.create(model="m", messages=[])
    assert calls.addresses() == "judge:9 small 2"
    with httpx.Client(transport=httpx.MockTransport(answering)) as client:
        client.post(CHAT, json={})
    assert calls.count == 2

"""Odd numbers and depths in every field of an agent's call: no 5xx."""

from __future__ import annotations

import json

import pytest

from tests.generation.proxy.proxy_kit import ADD, AppProxy
from tests.odd_numbers import ODD, places, with_number

SAMPLING = {"n": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 1, "seed": 1}
BODIES = {
    "chat/completions": SAMPLING
    | {
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 4,
        "max_completion_tokens": 4,
        "top_logprobs": 1,
        "presence_penalty": 0.0,
        "tools": [ADD | {"extra": 1}],
    },
    "responses": {"input": "hello", "max_output_tokens": 16, "temperature": 1.0, "top_p": 1.0},
    "messages": {
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 4,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 1,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    },
    "completions": SAMPLING | {"prompt": "hello", "max_tokens": 4, "logprobs": 1},
}


async def sent(proxy, uuid, path, text, **headers):
    headers = {"content-type": "application/json"} | headers
    return await proxy.http.post(f"/{uuid}/v1/{path}", content=text, headers=headers)


@pytest.mark.parametrize("path", BODIES)
async def test_an_odd_number_is_bounded_or_refused(path):
    proxy = AppProxy()
    uuid = await proxy.open()
    for where in places(BODIES[path]):
        for number in ODD:
            reply = await sent(proxy, uuid, path, with_number(BODIES[path], where, number))
            assert reply.status_code < 500, (where, number[:30], reply.text)


@pytest.mark.parametrize("path", BODIES)
async def test_a_body_nested_100_000_deep_is_refused(path):
    proxy = AppProxy()
    uuid = await proxy.open()
    for name in ("messages", "input", "tools"):
        text = f'{{"{name}": ' + "[" * 100_000 + "]" * 100_000 + "}"
        assert (await sent(proxy, uuid, path, text)).status_code == 400


@pytest.mark.parametrize("count", ["7" * 5000, "-1", "1e9", "\u00b2", "x", "", "999999999"])
async def test_an_odd_attempt_number_is_read_as_none(count):
    proxy = AppProxy()
    uuid = await proxy.open()
    text = json.dumps(BODIES["chat/completions"])
    header = {"x-stainless-retry-count": count.encode()}
    assert (await sent(proxy, uuid, "chat/completions", text, **header)).status_code < 500

"""Choice of a server, and failover of calls and sessions to another server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from atroposlib.errors import InferenceRefused, InferenceUnavailable
from atroposlib.generation.engines.http import ROUTING_HEADER
from atroposlib.generation.routing.failover import pick_server
from atroposlib.testing.fake_shapes import END, encode

HELLO = [{"role": "user", "content": "hello"}]
PROMPT = encode("<|user|>abc<|end|><|assistant|>")


def calls_of(manager: Any) -> list[Any]:
    return [
        lambda: manager.chat_completion(messages=HELLO),
        lambda: manager.completion(prompt="abc"),
        lambda: manager.generate(PROMPT),
        lambda: manager.tokens_and_logprobs_completion(input_ids=PROMPT),
        lambda: manager.get_logprobs(input_ids=PROMPT),
    ]


async def test_a_call_that_failed_on_one_server_is_made_on_another(manage) -> None:
    manager, (first, second) = manage(2, "sglang")
    for fake in (first, second):
        fake.shapes = frozenset({"sglang"})
    for i, call in enumerate(calls_of(manager), start=1):
        first.fail_next.extend([500] * 3)
        await call()
        assert (len(first.requests), len(second.requests)) == (3 * i, i)


async def test_a_rejection_causes_no_failover(manage) -> None:
    manager, (first, second) = manage(2)
    first.fail_next.append(400)
    with pytest.raises(InferenceRefused):
        await manager.chat_completion(messages=HELLO)
    assert (len(first.requests), len(second.requests)) == (1, 0)


async def test_when_every_server_fails_the_error_has_the_last_reason(manage) -> None:
    manager, fakes = manage(3)
    for fake in fakes:
        fake.fail_next.extend([500] * 3)
    with pytest.raises(InferenceUnavailable, match="3 attempts failed.*status 500"):
        await manager.chat_completion(messages=HELLO)
    assert [len(fake.requests) for fake in fakes] == [3, 3, 3]


async def test_no_call_waits_for_a_dead_server_while_another_is_available(manage) -> None:
    manager, (first, second) = manage(2, timeout=600)  # the wait without failover
    first.healthy = False
    await asyncio.gather(*(manager.chat_completion(messages=HELLO) for _ in range(8)))
    assert (len(first.requests), len(second.requests)) == (0, 8)


async def test_with_all_servers_down_the_first_to_recover_gets_the_call(manage) -> None:
    manager, (first, second) = manage(2, timeout=600)
    first.healthy = second.healthy = False
    call = asyncio.ensure_future(manager.chat_completion(messages=HELLO))
    while manager.waiting_on is None:
        await asyncio.sleep(0.001)
    assert "no answer" in manager.waiting_on
    second.healthy = True
    await call
    assert (len(first.requests), len(second.requests)) == (0, 1)


async def test_received_tokens_are_kept_when_their_server_dies(manage) -> None:
    manager, (first, second) = manage(2, "vllm")
    for fake, version in ((first, 3), (second, 4)):
        fake.shapes = frozenset({"generate"})
        fake.weight_version = version
        fake.reply = lambda prompt, i: "abcd"[len(encode(prompt)) - len(PROMPT) :]
    first.abort_next.append(2)

    def fail_after_the_first(path: str, body: Any) -> None:
        if len(first.requests) > 1:
            first.fail_next.append(500)

    first.on_request = fail_after_the_first
    (output,) = await manager.generate(PROMPT, max_tokens=9)
    assert output.tokens == [*encode("abcd"), END]
    assert output.versions == [3, 3, 4, 4, 4]
    assert (len(first.requests), len(second.requests)) == (4, 1)
    assert second.requests[0][1]["prompt"]["prompt_token_ids"] == PROMPT + encode("ab")
    assert second.requests[0][1]["max_tokens"] == 7


# --- sessions ----------------------------------------------------------------------------


async def test_a_managed_session_stays_on_its_server(manage, tokenizer: Any) -> None:
    manager, fakes = manage(2, "vllm")
    async with (
        manager.managed_server(tokenizer) as one,
        manager.managed_server(tokenizer) as other,
    ):
        for _ in range(3):
            await asyncio.gather(
                one.chat_completion(messages=HELLO), other.chat_completion(messages=HELLO)
            )
    assert [len(fake.requests) for fake in fakes] == [3, 3]
    keys = [{headers[ROUTING_HEADER] for headers in fake.headers} for fake in fakes]
    assert [len(found) for found in keys] == [1, 1] and keys[0] != keys[1]
    assert [server.sessions for server in manager.servers] == [0, 0]


async def test_a_session_moves_when_its_server_fails_and_stays_on_the_new_server(
    manage, tokenizer: Any
) -> None:
    manager, (first, second) = manage(2, "vllm")
    async with manager.managed_server(tokenizer) as managed:
        await managed.chat_completion(messages=HELLO)
        first.fail_next.extend([500] * 3)
        await managed.chat_completion(messages=HELLO)
        await managed.chat_completion(messages=HELLO)
        assert len(managed.get_state()["nodes"]) == 3
        assert [server.sessions for server in manager.servers] == [0, 1]
    assert (len(first.requests), len(second.requests)) == (1 + 3, 2)
    assert [server.sessions for server in manager.servers] == [0, 0]


async def test_a_session_with_a_named_server_has_no_failover(manage, tokenizer: Any) -> None:
    manager, (first, second) = manage(2, "vllm")
    url = manager.servers[0].base_url
    async with manager.managed_server(tokenizer, base_url=url) as managed:
        first.fail_next.extend([500] * 3)
        with pytest.raises(InferenceUnavailable):
            await managed.chat_completion(messages=HELLO)
    assert second.requests == []


async def test_a_large_n_in_a_session_is_split(manage, tokenizer: Any) -> None:
    manager, (fake,) = manage(1, "vllm", manager={"max_n_completions": 2})
    async with manager.managed_server(tokenizer) as managed:
        chat = await managed.chat_completion(messages=HELLO, n=5, seed=11)
        assert [choice.index for choice in chat.choices] == list(range(5))
        assert len(managed.nodes_for(chat)) == 5
    sent = [(body["n"], body["seed"]) for _, body in fake.requests]
    assert [n for n, _ in sent] == [2, 2, 1]
    assert sent[0][1] == 11 and len({seed for _, seed in sent}) == 3


# --- through a proxy ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headrooms", "healthy", "index"),
    [
        ([1, 5, 3], [True, True, True], 1),
        ([1, 5, 3], [True, False, True], 2),
        ([4, 4, 4], [True, True, True], 0),
        ([-2, -1], [True, True], 1),
        ([1, 5], [False, False], 1),
    ],
)
def test_the_healthy_server_with_most_room_is_picked(
    headrooms: list[int], healthy: list[bool], index: int
) -> None:
    servers: list[Any] = [
        SimpleNamespace(sem=SimpleNamespace(_value=room), server_healthy=up)
        for room, up in zip(headrooms, healthy)
    ]
    assert pick_server(servers, "train") is servers[index]

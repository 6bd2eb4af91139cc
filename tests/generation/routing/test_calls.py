"""Calls of a manager: any n, in chunks over its servers."""

from __future__ import annotations

import pytest

from atroposlib.testing.fake_shapes import END, encode

HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(("n", "sizes"), [(20, [8, 8, 4]), (8, [8]), (1, [1])])
async def test_n_is_split_with_full_chunks_first(manage, n: int, sizes: list[int]) -> None:
    manager, (fake,) = manage(1, manager={"max_n_completions": 8})
    await manager.chat_completion(messages=HELLO, n=n)
    assert sorted((body["n"] for _, body in fake.requests), reverse=True) == sizes


async def test_a_large_n_is_split_over_servers_and_renumbered(manage) -> None:
    manager, fakes = manage(2, manager={"max_n_completions": 3})
    completion = await manager.chat_completion(messages=HELLO, n=7)
    assert [choice.index for choice in completion.choices] == list(range(7))
    sizes = sorted(body["n"] for fake in fakes for _, body in fake.requests)
    assert sizes == [1, 3, 3] and all(fake.requests for fake in fakes)
    assert completion.usage is not None and completion.usage.prompt_tokens == 3 * 8


async def test_tokens_of_all_chunks_are_joined_in_order(manage) -> None:
    manager, fakes = manage(1, "vllm", manager={"max_n_completions": 2})
    fakes[0].reply = lambda prompt, i: f"{i}"
    outputs = await manager.generate([1, 9], n=3)
    expected = [[*encode(text), END] for text in "010"]
    assert [output.tokens for output in outputs] == expected
    ids, tokens, _, reasons = await manager.tokens_and_logprobs_completion(
        input_ids=[1, 9], n=3
    )
    assert (ids, tokens, reasons) == ([1, 9], expected, ["stop"] * 3)

"""Managed sessions over servers and tokenizers of the original's interface."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from atroposlib.errors import TokensMissing
from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.engines.harness import ServerHarness
from atroposlib.generation.sessions.managed import ManagedServer, SequenceNode
from atroposlib.testing.fake_shapes import decode, encode


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def trained_text(node: SequenceNode) -> str:
    return decode(token for token in node.masked_tokens if token != -100)


class OldServer:
    """The original's shape: one coroutine that answers a four-tuple, and a config."""

    def __init__(self, *answers: Any) -> None:
        self.config = APIServerConfig(model_name="old")
        self.answers = list(answers)
        self.calls: list[dict[str, Any]] = []

    async def tokens_and_logprobs_completion(self, **kwargs: Any) -> Any:
        self.calls.append(kwargs)
        answer = self.answers.pop(0)
        if isinstance(answer, str):  # sample this text after the exact given prompt
            tokens = [ord(char) for char in answer]
            return kwargs["input_ids"], [tokens], [[-0.5] * len(tokens)], ["stop"]
        return answer


class OrdTokenizer:
    """As little as a tokenizer of a test may have."""

    def encode(self, text: str) -> list[int]:
        return [ord(char) for char in text]

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


class RenderingTokenizer(OrdTokenizer):
    def apply_chat_template(self, messages, tokenize=True, add_generation_prompt=False):
        text = "".join(f"[{m['role']}]{m['content']}\n" for m in messages)
        return text + ("[assistant]" if add_generation_prompt else "")


@pytest.mark.parametrize(
    ("minimal", "prompt", "suffix"),
    [
        (OrdTokenizer(), "user: a\nassistant:", "\nuser: b\nassistant:"),
        (RenderingTokenizer(), "[user]a\n[assistant]", "\n[user]b\n[assistant]"),
    ],
)
async def test_servers_and_tokenizers_of_the_original_interface_work(
    minimal: Any, prompt: str, suffix: str
) -> None:
    server = OldServer(" one", " two")
    managed = ManagedServer(server, minimal)
    first = await managed.chat_completion(messages=[user("a")], max_tokens=5, n=1)
    assert server.calls[0]["prompt"] == prompt and server.calls[0]["max_tokens"] == 5
    assert server.calls[0]["input_ids"] == minimal.encode(prompt)
    assert "messages" not in server.calls[0] and first.model == "old"
    history = [user("a"), {"role": "assistant", "content": " one"}, user("b")]
    if isinstance(minimal, RenderingTokenizer):
        second = await managed.chat_completion(messages=history)
        (node,) = managed.nodes_for(second)
        assert node.full_text == f"{prompt} one{suffix} two"
        assert [chr(t) for t in node.masked_tokens if t != -100] == list(" one two")
    assert all(set(node.versions) == {-1} for node in managed.get_state()["nodes"])


async def test_the_node_holds_the_prompt_reported_by_the_server() -> None:
    server = OldServer(
        ([1, 2], [[3], [4]], [[-0.1], [-0.2]], ["stop", {"type": "length", "length": 1}])
    )
    managed = ManagedServer(server, OrdTokenizer())
    completion = await managed.completion(prompt="ab", n=2)
    nodes = managed.nodes_for(completion)
    assert [node.tokens for node in nodes] == [[1, 2, 3], [1, 2, 4]]
    assert [choice.finish_reason for choice in completion.choices] == ["stop", "length"]


async def test_a_turn_with_a_prompt_changed_by_the_server_does_not_modify_the_earlier_row() -> (
    None
):
    server = OldServer("b", ([7, 7], [[99]], [[-0.5]], ["stop"]))
    managed = ManagedServer(server, OrdTokenizer())
    await managed.completion(prompt="a")
    await managed.completion(prompt="abc")
    rows = managed.get_state()["nodes"]
    assert [row.masked_tokens for row in rows] == [[-100, 98], [-100, -100, 99]]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        ([1], [[2]], None, ["stop"]),
        ([1], None, None, None),
        ([1], [[2]], [None], ["stop"]),
        ([1], [[2, 3]], [[-0.5]], ["stop"]),
        ([1], [[2]], [[-0.5, -0.5]], ["stop"]),
        ([1], [[2]], [[-0.5], [-0.5]], ["stop"]),
        ([1], [], [], []),
    ],
)
async def test_a_result_without_a_logprob_for_every_token_raises(answer: Any) -> None:
    managed = ManagedServer(OldServer(answer), OrdTokenizer())
    with pytest.raises(TokensMissing):
        await managed.completion(prompt="a")
    assert managed.get_state() == {"nodes": []}


async def test_a_text_only_server_is_rejected(connect, tokenizer) -> None:
    managed = ManagedServer(connect("openai"), tokenizer)
    with pytest.raises((TokensMissing, NotImplementedError)):
        await managed.chat_completion(messages=[user("a")])


async def test_a_server_without_get_logprobs_raises() -> None:
    managed = ManagedServer(OldServer(), OrdTokenizer())
    with pytest.raises(NotImplementedError, match="does not implement get_logprobs"):
        await managed.get_logprobs(prompt="a")


async def test_a_method_replaced_on_one_server_object_is_called(tokenizer) -> None:
    harness = ServerHarness()

    async def instead(**kwargs: Any) -> Any:
        return kwargs["input_ids"], [[5]], [[-0.5]], ["stop"]

    harness.tokens_and_logprobs_completion = instead  # type: ignore[method-assign]
    managed = ManagedServer(harness, tokenizer)
    (node,) = managed.nodes_for(await managed.completion(prompt="a"))
    assert node.tokens[-1] == 5


async def test_nodes_of_concurrent_calls_are_found_in_any_order_of_return(tokenizer) -> None:
    """48 conversations of one session, each answered when a shuffled gate opens."""
    order = list(range(48))
    random.Random(0).shuffle(order)
    arrived = asyncio.Semaphore(0)
    gates = [asyncio.Event() for _ in order]
    digits = "0123456789"

    class Gated(OldServer):
        async def tokens_and_logprobs_completion(self, **kwargs: Any) -> Any:
            number = int(kwargs["prompt"].split("no ")[-1].split("<|end|>")[0])
            arrived.release()
            await gates[number].wait()
            texts = ["", f"{number}", f"{number}"]  # empty, and a pair of twins
            tokens = [encode(text) for text in texts]
            reasons = ["length"] * 3
            return kwargs["input_ids"], tokens, [[-0.5] * len(t) for t in tokens], reasons

    managed = ManagedServer(Gated(), tokenizer)
    calls = [
        asyncio.ensure_future(managed.chat_completion(messages=[user(f"no {i}")], n=3))
        for i in order
    ]
    for _ in calls:
        await arrived.acquire()
    for number in sorted(order, key=lambda i: digits.find(str(i)[-1])):
        gates[number].set()
    for number, call in zip(order, calls):
        completion = await call
        nodes = managed.nodes_for(completion)
        assert [trained_text(node) for node in nodes] == ["", f"{number}", f"{number}"]
        assert [c.message.content for c in completion.choices] == [
            "",
            f"{number}",
            f"{number}",
        ]
    assert len(managed.get_state()["nodes"]) == 3 * len(order)

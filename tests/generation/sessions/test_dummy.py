"""Sessions over text-only servers, with placeholder tokens unfit for training."""

from __future__ import annotations

from typing import Any

import pytest

from atroposlib.envs.rollout.groups import from_nodes
from atroposlib.errors import InvalidGroup
from atroposlib.generation.sessions.dummy import (
    ALLOW_VARIABLE,
    DummyManagedServer,
)

MESSAGES: list[Any] = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]


@pytest.fixture
def managed(connect, fake) -> DummyManagedServer:
    fake.reply = lambda prompt, i: f"four {i}"
    return DummyManagedServer(connect("openai"))


async def test_every_choice_has_a_node_of_placeholder_tokens(managed) -> None:
    completion = await managed.chat_completion(messages=MESSAGES, n=2)
    nodes = managed.nodes_for(completion)
    assert managed.get_state() == {"nodes": nodes}
    assert nodes[1].full_text == "system:s\n\nuser:a\n\nassistant:four 1"
    for node in nodes:
        assert node.tokens == list(range(128))
        assert node.masked_tokens == [-100, *range(1, 128)]
        assert node.logprobs == [-0.5] * 128 and node.versions == [-1] * 128
        assert node.metadata == {"finish_reason": "stop", "dummy_tokens": True}
    managed.reset()
    assert managed.get_state() == {"nodes": []}


async def test_the_dummy_session_completes_text_and_does_not_support_logprobs(managed) -> None:
    completion = await managed.completion(prompt="go:")
    (node,) = managed.nodes_for(completion)
    assert node.full_text == f"go:{completion.choices[0].text}"
    with pytest.raises(NotImplementedError, match="does not implement get_logprobs"):
        await managed.get_logprobs(prompt="a")


async def test_messages_may_be_the_objects_of_the_openai_package(managed) -> None:
    completion = await managed.chat_completion(messages=MESSAGES)
    said = completion.choices[0].message
    parts = [{"type": "text", "text": "see"}]
    history = [*MESSAGES, said.model_dump(), {"role": "user", "content": parts}]
    (node,) = managed.nodes_for(await managed.chat_completion(messages=history))
    assert "assistant:four 0\n\nuser:[" in node.full_text


async def test_placeholder_tokens_form_a_group_only_if_allowed(managed, monkeypatch) -> None:
    nodes = managed.nodes_for(await managed.chat_completion(messages=MESSAGES))
    monkeypatch.delenv(ALLOW_VARIABLE, raising=False)
    with pytest.raises(InvalidGroup, match=r"tokens\[0\]: made up"):
        from_nodes(nodes, [1.0])
    monkeypatch.setenv(ALLOW_VARIABLE, "1")
    assert from_nodes(nodes, [1.0])["scores"] == [1.0]

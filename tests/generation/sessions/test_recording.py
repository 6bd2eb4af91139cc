"""The record of a rollout: nodes of its sessions, in tasks and threads started in it."""

from __future__ import annotations

import asyncio

from atroposlib.generation.routing.calls import StickySession
from atroposlib.generation.sampling.generation import Generation
from atroposlib.generation.sessions.managed import ManagedServer
from atroposlib.generation.sessions.recording import (
    record_nodes,
    recorded_here,
    recorded_nodes,
)
from atroposlib.generation.sessions.sequences import extend_node


def node(prompt, tokens, parent=None):
    generation = Generation(
        prompt_ids=prompt,
        tokens=tokens,
        logprobs=[-1.0] * len(tokens),
        versions=[0] * len(tokens),
        finish_reason="stop",
        sampling={"temperature": 0.5},
    )
    return extend_node(parent, generation, "")


def test_nothing_is_kept_outside_of_a_rollout():
    record_nodes([node([1], [2])])
    assert recorded_here() == ()


def test_a_node_that_extends_another_takes_its_place():
    first = node([1], [2])
    second = node([1, 2, 3], [4], parent=first)
    alone = node([1, 2, 3], [4])  # of a tree: it holds its own turn only
    with recorded_nodes() as nodes:
        record_nodes([first])
        record_nodes([alone], first)
        assert nodes == [first, alone]
        record_nodes([second], first)
        assert nodes == [alone, second]


async def test_concurrent_rollouts_have_separate_records(connect, tokenizer):
    async def rollout(text, temperature):
        with recorded_nodes() as nodes:
            managed = ManagedServer(connect("vllm"), tokenizer)
            await asyncio.create_task(
                managed.completion(prompt=text, max_tokens=2, temperature=temperature, n=2)
            )
            return nodes

    for nodes, temperature in zip(
        await asyncio.gather(rollout("a", 0.5), rollout("bc", 0.7)), (0.5, 0.7)
    ):
        assert len(nodes) == 2
        assert [one.spans[0]["temperature"] for one in nodes] == [temperature] * 2


async def test_token_requests_without_a_session_are_recorded(connect):
    server = connect("vllm")

    class Route:
        servers = [server]
        on = server

        async def call(self, split, ask):
            return await ask(server)

    with recorded_nodes() as nodes:
        session = StickySession(Route(), 8)
        _, tokens, *_ = await session.tokens_and_logprobs_completion(
            input_ids=[5, 6], max_tokens=3, temperature=0.25
        )
    (found,) = nodes
    assert found.tokens == [5, 6, *tokens[0]]
    assert found.spans[0]["temperature"] == 0.25

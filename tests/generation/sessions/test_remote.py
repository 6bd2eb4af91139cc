"""Sessions at a remote proxy have the interface of in-process sessions."""

from __future__ import annotations

import asyncio
import json

import pytest

from atroposlib.errors import InferenceRefused, InferenceUnavailable, UnknownSession
from atroposlib.generation.proxy.in_process import serving_proxy
from atroposlib.generation.sessions.managed import ManagedServer
from atroposlib.generation.sessions.remote import (
    ProxyManagedServer,
    create_proxy_session,
)
from tests.generation.proxy.proxy_kit import (
    ADD,
    Manager,
    ScriptedServer,
    scripted_proxy,
    tool_call,
)

HELLO = [{"role": "user", "content": "hello"}]


def unsealed(state):
    """The state of a session without seals, whose random part differs between sessions."""
    for node in state["nodes"]:
        for span in node.spans:
            span.pop("seal", None)
    return state


@pytest.fixture
def admin(monkeypatch):
    """Lets create_proxy_session into the proxy of a test."""
    return lambda proxy: monkeypatch.setenv("ATROPOS_PROXY_TOKEN", proxy.admin_token)


async def test_a_remote_session_returns_the_same_nodes_as_a_managed_server(admin):
    def reply(prompt: str, i: int) -> str:
        return f"word {i}"

    async with scripted_proxy(reply) as (proxy, server):
        admin(proxy)
        local = ManagedServer(server, tool_parser="hermes")
        async with await create_proxy_session(proxy.url, model_name="x") as remote:
            assert remote.get_url() == f"{proxy.url}/{remote.session_uuid}/v1"
            assert remote.get_state() == {"nodes": []}
            for session in (local, remote):
                first = await session.chat_completion(messages=HELLO, n=2, max_tokens=50)
                message = first.choices[0].message
                messages = [*HELLO, message, {"role": "user", "content": "on"}]
                second = await session.chat_completion(messages=messages, max_tokens=50)
                assert [node.full_text[-14:] for node in session.nodes_for(first)] == [
                    f">word {i}<|end|>" for i in range(2)
                ]
                assert session.nodes_for(second)[0] in session.get_state()["nodes"]
            assert unsealed(remote.get_state()) == unsealed(local.get_state())
            remote.reset()
            assert remote.get_state() == {"nodes": []}
            await remote.chat_completion(messages=HELLO)
            assert len(remote.get_state()["nodes"]) == 1


async def test_every_argument_reaches_the_inference_server_and_tool_calls_come_back(admin):
    async with scripted_proxy(lambda prompt, i: tool_call(2, 3)) as (proxy, server):
        admin(proxy)
        async with await create_proxy_session(proxy.url) as remote:
            completion = await remote.chat_completion(
                messages=HELLO,
                tools=[ADD],
                tool_choice="auto",
                max_tokens=99,
                temperature=0.5,
                top_p=0.9,
                seed=7,
                min_p=0.1,
                stop=["x"],
                split="eval",
                extra_body={"top_k": 4},
            )
    asked = server.asked[0]
    wanted = {"max_tokens": 99, "temperature": 0.5, "top_p": 0.9, "seed": 7, "min_p": 0.1}
    wanted |= {"stop": ["x"], "split": "eval", "top_k": 4, "n": 1}
    assert {name: asked[name] for name in wanted} == wanted
    (call,) = completion.choices[0].message.tool_calls
    assert isinstance(call, dict)  # as from a ManagedServer: it goes back into messages
    assert json.loads(call["function"]["arguments"]) == {"a": 2, "b": 3}
    assert completion.usage.total_tokens > 0


async def test_concurrent_calls_keep_separate_nodes(admin):
    async with scripted_proxy(lambda prompt, i: prompt[8:12]) as (proxy, _):
        admin(proxy)
        async with await create_proxy_session(proxy.url) as remote:
            asked = [[{"role": "user", "content": f"q{i:03d}"}] for i in range(12)]
            completions = await asyncio.gather(
                *(remote.chat_completion(messages=messages) for messages in asked)
            )
            for messages, completion in zip(asked, completions):
                (node,) = remote.nodes_for(completion)
                assert node.full_text.startswith(f"<|user|>{messages[0]['content']}")
                assert completion.choices[0].message.content == messages[0]["content"]
            assert len(remote.get_state()["nodes"]) == 12


async def test_unsupported_proxy_operations_raise_a_clear_error(admin):
    async with scripted_proxy(lambda prompt, i: "word") as (proxy, _):
        admin(proxy)
        remote = await create_proxy_session(proxy.url)
        with pytest.raises(NotImplementedError):
            await remote.completion(prompt="x")
        with pytest.raises(NotImplementedError, match="get_logprobs"):
            await remote.get_logprobs(prompt="x")
        with pytest.raises(InferenceRefused, match="at least one"):
            await remote.chat_completion(messages=[])
        with pytest.raises(InferenceRefused, match="no server at"):
            await create_proxy_session(proxy.url, base_url="http://nowhere/v1")
        await remote.cleanup()
        with pytest.raises(UnknownSession):
            await remote.chat_completion(messages=HELLO)
        await remote.cleanup()  # a session that is gone is no error


async def test_an_unreachable_proxy_and_a_rejection_raise_different_errors(no_backoff):
    with pytest.raises(InferenceUnavailable):
        await create_proxy_session("http://127.0.0.1:1")
    server = ScriptedServer(lambda prompt, i: "word")
    async with serving_proxy(Manager(server), server.tokenizer) as proxy:
        with pytest.raises(InferenceRefused, match="401"):
            await create_proxy_session(proxy.url)
        stranger = ProxyManagedServer(proxy.url, "no-such-session", "m", None)
        with pytest.raises(UnknownSession):
            await stranger.chat_completion(messages=HELLO)
        await stranger.cleanup()

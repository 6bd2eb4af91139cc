"""The endpoints of the original, and what a session's owner calls."""

from __future__ import annotations

import json

import httpx
import pytest

from atroposlib.generation.configs import APIServerConfig
from atroposlib.generation.proxy.main import Limits, create_app
from atroposlib.generation.routing.manager import ServerManager
from tests.envs.server_handling.proxy_kit import (
    ADD,
    Manager,
    ScriptedServer,
    tool_call,
    tool_tokenizer,
)

HELLO = {"messages": [{"role": "user", "content": "hello"}]}


class Proxy:
    """An app over one scripted server, called in process."""

    def __init__(self, reply=lambda prompt, i: f"word {i}", **options) -> None:
        self.server = ScriptedServer(reply)
        self.manager = Manager(self.server)
        self.app = create_app(self.manager, self.server.tokenizer, "m", **options)
        transport = httpx.ASGITransport(self.app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://proxy")

    async def ask(self, method: str, path: str, body=None, status: int = 200):
        reply = await self.http.request(method, path, json=body)
        assert reply.status_code == status, reply.text
        return reply.json()

    async def open(self, **settings) -> str:
        return (await self.ask("POST", "/sessions/create", settings))["uuid"]


async def test_what_there_is_to_see_without_a_session():
    proxy = Proxy()
    assert await proxy.ask("GET", "/health") == {
        "status": "ok",
        "model": "m",
        "sessions": 0,
        "servers": 1,
        "healthy_servers": 1,
    }
    assert (await proxy.ask("GET", "/v1/models"))["data"][0]["owned_by"] == "atropos"
    assert (await proxy.ask("GET", "/servers"))["servers"] == [
        {
            "index": 0,
            "base_url": "http://scripted/v1",
            "healthy": True,
            "model_name": "scripted",
            "server_type": "vllm",
        }
    ]


async def test_a_session_from_its_opening_to_its_end():
    proxy = Proxy()
    opened = await proxy.ask("POST", "/sessions/create", {})
    assert opened["model_name"] == "m"
    assert opened["tool_parser"] == "hermes"
    assert opened["base_url"] == "http://scripted/v1"
    uuid = opened["uuid"]
    reply = await proxy.ask("POST", f"/{uuid}/v1/chat/completions", {**HELLO, "n": 2})
    assert reply["object"] == "chat.completion"
    assert reply["id"].startswith("chatcmpl-") and len(reply["id"]) == 9 + 12
    assert reply["choices"][1] == {
        "index": 1,
        "message": {"role": "assistant", "content": "word 1"},
        "finish_reason": "stop",
    }
    asked = proxy.server.asked[0]
    assert (asked["max_tokens"], asked["temperature"], asked["n"]) == (1024, 1.0, 2)
    nodes = (await proxy.ask("GET", f"/{uuid}/nodes"))["nodes"]
    assert [node["metadata"] for node in nodes] == [{"finish_reason": "stop"}] * 2
    assert nodes[0]["full_text"].endswith("<|assistant|>word 0<|end|>")
    (listed,) = (await proxy.ask("GET", "/sessions"))["sessions"]
    assert (listed["uuid"], listed["num_nodes"]) == (uuid, 2)
    assert listed["last_accessed"] >= listed["created_at"]
    assert await proxy.ask("DELETE", f"/{uuid}") == {"status": "deleted", "uuid": uuid}
    assert (await proxy.ask("DELETE", f"/{uuid}", status=404))["error"]["code"] == 404
    assert (await proxy.ask("GET", "/health"))["sessions"] == 0


async def test_nodes_of_a_tree_come_as_a_list_too():
    proxy = Proxy()
    uuid = await proxy.open(track_tree=True)
    await proxy.ask("POST", f"/{uuid}/v1/chat/completions", {**HELLO, "n": 2})
    assert len((await proxy.ask("GET", f"/{uuid}/nodes"))["nodes"]) == 2
    assert len((await proxy.ask("GET", f"/sessions/{uuid}/rows"))["rows"]) == 2


async def test_tool_calls_are_in_the_message_only_when_there_are_some():
    proxy = Proxy(lambda prompt, i: tool_call(1, 2) if i == 0 else "none")
    uuid = await proxy.open()
    body = {**HELLO, "n": 2, "tools": [ADD], "tool_choice": "auto"}
    first, second = (await proxy.ask("POST", f"/{uuid}/v1/chat/completions", body))["choices"]
    (call,) = first["message"]["tool_calls"]
    assert first["finish_reason"] == "tool_calls"
    assert json.loads(call["function"]["arguments"]) == {"a": 1, "b": 2}
    assert "tool_calls" not in second["message"]


@pytest.mark.parametrize("with_tools", [False, True])
async def test_render_is_the_prompt_that_a_generation_sends(with_tools):
    """Thinking in the history, tools, the generation prompt, and tokens of an earlier turn
    that the tokenizer would not choose for its text: all as in the real call."""
    proxy = Proxy(lambda prompt, i: "<think>th</think>ok")
    uuid = await proxy.open(preserve_think_blocks=True)
    tools = {"tools": [ADD]} if with_tools else {}
    path = f"/{uuid}/v1/chat/completions"
    first = await proxy.ask("POST", path, {**HELLO, **tools})
    messages = [
        *HELLO["messages"],
        first["choices"][0]["message"],
        {"role": "user", "content": "on"},
    ]
    rendered = await proxy.ask("POST", f"{path}/render", {"messages": messages, **tools})
    assert len(proxy.server.asked) == 1  # nothing was generated
    await proxy.ask("POST", path, {"messages": messages, **tools})
    assert rendered["token_ids"] == proxy.server.asked[1]["input_ids"]
    assert rendered["prompt_text"] == proxy.server.asked[1]["prompt"]
    assert rendered["num_tokens"] == len(rendered["token_ids"])
    assert rendered["prompt_text"].endswith("<|user|>on<|end|><|assistant|>")
    assert "<think>th</think>ok" in rendered["prompt_text"]


async def test_a_chat_that_cannot_be_rendered_is_a_400():
    proxy = Proxy()
    proxy.server.tokenizer.chat_template = "{{ raise_exception('no such role') }}"
    uuid = await proxy.open()
    for path in ("chat/completions", "chat/completions/render"):
        body = await proxy.ask("POST", f"/{uuid}/v1/{path}", HELLO, status=400)
        assert "no such role" in body["error"]["message"]


async def test_errors_have_the_openai_shape():
    proxy = Proxy()
    uuid = await proxy.open()
    path = f"/{uuid}/v1/chat/completions"
    for body in ({"messages": []}, {}, {**HELLO, "n": 0}, {**HELLO, "temperature": "hot"}):
        error = (await proxy.ask("POST", path, body, status=400))["error"]
        assert error["type"] == "invalid_request_error" and error["message"]
    error = (await proxy.ask("POST", "/other/v1/chat/completions", HELLO, status=404))["error"]
    assert "other" in error["message"]
    assert "error" in await proxy.ask("GET", "/no/such/route", status=404)
    not_json = await proxy.http.post(path, content=b"{")
    assert (not_json.status_code, not_json.json()["error"]["code"]) == (400, 400)


async def test_a_backend_that_fails_is_a_server_error():
    def fail(prompt, i):
        raise RuntimeError("the engine is gone")

    proxy = Proxy(fail)
    uuid = await proxy.open()
    body = await proxy.ask("POST", f"/{uuid}/v1/chat/completions", HELLO, status=500)
    assert body["error"]["type"] == "server_error"
    assert "the engine is gone" in body["error"]["message"]
    assert (await proxy.ask("GET", f"/sessions/{uuid}/rows"))["rows"] == []


async def test_a_session_goes_to_the_server_that_was_asked_for():
    proxy = Proxy()
    other = ScriptedServer(lambda prompt, i: "other")
    other.config = APIServerConfig(base_url="http://other/v1", server_type="vllm")
    proxy.manager.servers.append(other)
    uuid = await proxy.open(base_url="http://other/v1/")
    reply = await proxy.ask("POST", f"/{uuid}/v1/chat/completions", HELLO)
    assert reply["choices"][0]["message"]["content"] == "other"
    body = await proxy.ask("POST", "/sessions/create", {"base_url": "http://x/v1"}, status=404)
    assert "http://scripted/v1, http://other/v1" in body["error"]["message"]
    error = await proxy.ask("POST", "/sessions/create", {"tool_parser": "nope"}, status=400)
    assert "nope" in error["error"]["message"]


async def test_sessions_spread_over_servers_and_leave_them():
    urls = [f"http://node{i}:9001/v1" for i in range(2)]
    manager = ServerManager([APIServerConfig(base_url=u, server_type="vllm") for u in urls])
    app = create_app(manager, tool_tokenizer(), "m")
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as http:
        opened = [(await http.post("/sessions/create", json={})).json() for _ in range(4)]
        assert sorted(one["base_url"] for one in opened) == sorted(urls * 2)
        for one in opened:
            await http.delete(f"/{one['uuid']}")
    assert [server.sessions for server in manager.servers] == [0, 0]


async def test_setup_replaces_the_servers_for_new_sessions_only():
    proxy = Proxy()
    old = await proxy.open()
    body = {"model_name": "new", "servers": [{"base_url": "http://localhost:1/v1"}]}
    assert await proxy.ask("POST", "/setup", body) == {
        "status": "ok",
        "servers": 1,
        "model_name": "new",
    }
    (server,) = (await proxy.ask("GET", "/servers"))["servers"]
    assert (server["server_type"], server["model_name"]) == ("vllm", "new")
    assert (await proxy.ask("POST", "/sessions/create", {}))["model_name"] == "new"
    assert (await proxy.ask("POST", f"/{old}/v1/chat/completions", HELLO))["model"] == "m"
    for wrong in ({"model_name": "x"}, {"model_name": "x", "servers": []}):
        await proxy.ask("POST", "/setup", wrong, status=400)


async def test_sessions_are_bounded_and_idle_ones_expire():
    proxy = Proxy(limits=Limits(max_sessions=2, idle_s=60))
    first, second = await proxy.open(), await proxy.open()
    error = (await proxy.ask("POST", "/sessions/create", {}, status=429))["error"]
    assert "2 sessions are open" in error["message"]
    sessions = proxy.app.state.sessions
    used = sessions.find(second).last_accessed
    sessions.find(first).last_accessed = used - 59
    assert await sessions.expire(now=used) == 0
    assert await sessions.expire(now=used + 2) == 1
    await proxy.ask("GET", f"/{first}/nodes", status=404)
    await proxy.open()


async def test_rewards_reach_the_rows():
    proxy = Proxy()
    uuid = await proxy.open()
    path = f"/sessions/{uuid}/reward"
    await proxy.ask("POST", path, {"reward": 1, "completion_id": "last"}, status=404)
    reply = await proxy.ask("POST", f"/{uuid}/v1/chat/completions", HELLO)
    messages = [
        *HELLO["messages"],
        reply["choices"][0]["message"],
        {"role": "user", "content": "on"},
    ]
    await proxy.ask("POST", f"/{uuid}/v1/chat/completions", {"messages": messages})
    given = await proxy.ask("POST", path, {"reward": 1, "completion_id": reply["id"]})
    assert given["completion_id"] == reply["id"].removeprefix("chatcmpl-")
    await proxy.ask("POST", path, {"reward": 0.5, "completion_id": "last"})
    await proxy.ask("POST", path, {"reward": 2})
    (row,) = (await proxy.ask("GET", f"/sessions/{uuid}/rows"))["rows"]
    assert row["reward"] == 3.5
    (row,) = (await proxy.ask("GET", f"/sessions/{uuid}/rows?discount=0"))["rows"]
    assert [turn["discounted"] for turn in row["turns"]] == [1.0, 2.5]
    await proxy.ask("GET", f"/sessions/{uuid}/rows?discount=2", status=400)
    await proxy.ask("POST", path, {"reward": "much"}, status=400)
    await proxy.ask("POST", path, {"reward": 1, "completion_id": "chatcmpl-0"}, status=404)


async def test_nodes_of_one_completion_and_a_reset():
    proxy = Proxy()
    uuid = await proxy.open()
    replies = [
        await proxy.ask("POST", f"/{uuid}/v1/chat/completions", {**HELLO, "n": n})
        for n in (1, 2)
    ]
    found = await proxy.ask("GET", f"/{uuid}/nodes?completion_id={replies[1]['id']}")
    assert [node["full_text"][-12:] for node in found["nodes"]] == [
        "word 0<|end|>"[-12:],
        "word 1<|end|>"[-12:],
    ]
    await proxy.ask("POST", f"/sessions/{uuid}/reset")
    assert (await proxy.ask("GET", f"/{uuid}/nodes"))["nodes"] == []
    assert (await proxy.ask("GET", f"/sessions/{uuid}/rows"))["rows"] == []


async def test_token_ids_are_given_to_those_who_ask():
    proxy = Proxy()
    uuid = await proxy.open()
    body = {**HELLO, "return_token_ids": True}
    reply = await proxy.ask("POST", f"/{uuid}/v1/chat/completions", body)
    (row,) = (await proxy.ask("GET", f"/sessions/{uuid}/rows"))["rows"]
    assert reply["prompt_token_ids"] + reply["choices"][0]["token_ids"] == row["tokens"]


async def test_a_text_server_serves_agents_and_has_no_rows(fake_url):
    manager = ServerManager([APIServerConfig(base_url=f"{fake_url}/v1", server_type="openai")])
    app = create_app(manager, None, "m")
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as http:
        uuid = (await http.post("/sessions/create", json={})).json()["uuid"]
        body = {**HELLO, "logprobs": True, "return_token_ids": True}
        reply = (await http.post(f"/{uuid}/v1/chat/completions", json=body)).json()
        assert reply["choices"][0]["message"]["content"].startswith("reply")
        assert reply["choices"][0]["logprobs"] is None
        (node,) = (await http.get(f"/{uuid}/nodes")).json()["nodes"]
        assert node["metadata"]["dummy_tokens"] is True
        rows = await http.get(f"/sessions/{uuid}/rows")
        assert (rows.status_code, "made-up" in rows.text) == (409, True)
        render = await http.post(f"/{uuid}/v1/chat/completions/render", json=HELLO)
        assert render.status_code == 400
    await manager.close()


async def test_a_prepared_harness_answers_through_the_proxy():
    tokenizer = tool_tokenizer()
    manager = ServerManager([], testing=True)
    prompt = "<|user|>hello<|end|><|assistant|>"
    prompt_ids, said = (tokenizer.encode(text) for text in (prompt, "hi"))
    manager.servers[0].set_tokens_and_logprobs_response(
        prompt, prompt_ids, [said], [[-0.5] * len(said)], ["stop"]
    )
    app = create_app(manager, tokenizer, "m")
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://proxy") as http:
        uuid = (await http.post("/sessions/create", json={})).json()["uuid"]
        reply = (await http.post(f"/{uuid}/v1/chat/completions", json=HELLO)).json()
        (row,) = (await http.get(f"/sessions/{uuid}/rows")).json()["rows"]
    assert reply["choices"][0]["message"]["content"] == "hi"
    assert row["tokens"] == prompt_ids + said

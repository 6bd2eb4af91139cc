"""Routes of the owner: health, servers, sessions from opening to end."""

from __future__ import annotations

import httpx

from atroposlib.generation.proxy.main import create_app
from atroposlib.generation.routing.manager import ServerManager
from tests.generation.proxy.proxy_kit import AppProxy, tool_tokenizer

HELLO = {"messages": [{"role": "user", "content": "hello"}]}


async def test_the_health_and_servers_routes_need_no_session():
    proxy = AppProxy()
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


async def test_a_session_is_opened_used_and_closed():
    proxy = AppProxy()
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

"""One session: nodes, rewards, rows, reset."""

from __future__ import annotations

from atroposlib.testing.tiny import CHAT_TEMPLATE
from tests.generation.proxy.proxy_kit import AppProxy, tool_call

HELLO = {"messages": [{"role": "user", "content": "hello"}]}


async def test_rewards_are_stored_in_the_rows():
    proxy = AppProxy()
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


async def test_a_completion_has_its_nodes_and_a_reset_removes_them():
    proxy = AppProxy()
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


async def test_nodes_of_a_tree_session_are_also_returned_as_a_list():
    proxy = AppProxy()
    uuid = await proxy.open(track_tree=True)
    await proxy.ask("POST", f"/{uuid}/v1/chat/completions", {**HELLO, "n": 2})
    assert len((await proxy.ask("GET", f"/{uuid}/nodes"))["nodes"]) == 2
    assert len((await proxy.ask("GET", f"/sessions/{uuid}/rows"))["rows"]) == 2


async def test_tools_that_the_template_ignores_are_rejected_or_described():
    proxy = AppProxy(lambda prompt, i: tool_call(1, 2))
    proxy.server.tokenizer.chat_template = CHAT_TEMPLATE
    function = {"name": "add", "parameters": {"type": "object"}}
    body = {**HELLO, "tools": [{"type": "function", "function": function}]}
    path = "v1/chat/completions"
    uuid = await proxy.open()
    refused = await proxy.ask("POST", f"/{uuid}/{path}", body, status=400)
    assert "ignores tools" in refused["error"]["message"]
    assert "describe_tools" in refused["error"]["message"]
    await proxy.ask("POST", f"/{uuid}/{path}/render", body, status=400)
    uuid = await proxy.open(describe_tools=True)
    prompt = await proxy.ask("POST", f"/{uuid}/{path}/render", body)
    assert prompt["prompt_text"].startswith("<|system|>You may call these functions:")
    reply = await proxy.ask("POST", f"/{uuid}/{path}", body)
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    (row,) = (await proxy.ask("GET", f"/sessions/{uuid}/rows"))["rows"]
    assert row["tokens"][: prompt["num_tokens"]] == prompt["token_ids"]
    uuid = await proxy.open(describe_tools=None)
    await proxy.ask("POST", f"/{uuid}/{path}", body)

"""Routes of agents: replies, prompts and errors."""

from __future__ import annotations

import json

import pytest

from tests.generation.proxy.proxy_kit import ADD, AppProxy, tool_call

HELLO = {"messages": [{"role": "user", "content": "hello"}]}


async def test_a_message_without_tool_calls_has_no_tool_calls_field():
    proxy = AppProxy(lambda prompt, i: tool_call(1, 2) if i == 0 else "none")
    uuid = await proxy.open()
    body = {**HELLO, "n": 2, "tools": [ADD], "tool_choice": "auto"}
    first, second = (await proxy.ask("POST", f"/{uuid}/v1/chat/completions", body))["choices"]
    (call,) = first["message"]["tool_calls"]
    assert first["finish_reason"] == "tool_calls"
    assert json.loads(call["function"]["arguments"]) == {"a": 1, "b": 2}
    assert "tool_calls" not in second["message"]


@pytest.mark.parametrize("with_tools", [False, True])
async def test_render_returns_the_prompt_that_a_generation_sends(with_tools):
    """Thinking in the history, tools, the generation prompt, and tokens of an earlier turn
    that the tokenizer would not choose for its text: all as in the real call."""
    proxy = AppProxy(lambda prompt, i: "<think>th</think>ok")
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
    proxy = AppProxy()
    proxy.server.tokenizer.chat_template = "{{ raise_exception('no such role') }}"
    uuid = await proxy.open()
    for path in ("chat/completions", "chat/completions/render"):
        body = await proxy.ask("POST", f"/{uuid}/v1/{path}", HELLO, status=400)
        assert "no such role" in body["error"]["message"]


async def test_errors_have_the_openai_shape():
    proxy = AppProxy()
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


async def test_a_failing_backend_is_reported_as_a_server_error():
    def fail(prompt, i):
        raise RuntimeError("the engine is gone")

    proxy = AppProxy(fail)
    uuid = await proxy.open()
    body = await proxy.ask("POST", f"/{uuid}/v1/chat/completions", HELLO, status=500)
    assert body["error"]["type"] == "server_error"
    assert "the engine is gone" in body["error"]["message"]
    assert (await proxy.ask("GET", f"/sessions/{uuid}/rows"))["rows"] == []


async def test_token_ids_are_returned_on_request():
    proxy = AppProxy()
    uuid = await proxy.open()
    body = {**HELLO, "return_token_ids": True}
    reply = await proxy.ask("POST", f"/{uuid}/v1/chat/completions", body)
    (row,) = (await proxy.ask("GET", f"/sessions/{uuid}/rows"))["rows"]
    assert reply["prompt_token_ids"] + reply["choices"][0]["token_ids"] == row["tokens"]

"""Anthropic's Messages API, called by its clients."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.generation.proxy.proxy_kit import ADD, adder, scripted_proxy

TOOL = {"name": "add", "description": "sum", "input_schema": ADD["function"]["parameters"]}
HEADERS = {"anthropic-version": "2023-06-01"}


def body_of(*messages, **fields):
    return {"model": "m", "max_tokens": 200, "messages": list(messages), **fields}


def user(content):
    return {"role": "user", "content": content}


async def post(proxy, session, body, path="/v1/messages"):
    headers = {**HEADERS, "x-api-key": session.api_key}
    async with httpx.AsyncClient(base_url=session.url, headers=headers) as client:
        return await client.post(path, json=body)


async def test_a_tool_result_continues_the_row_of_its_tool_call():
    async with scripted_proxy(adder) as (proxy, server):
        session = await proxy.open_session()
        asked = body_of(user("2+3?"), tools=[TOOL], system="be brief")
        first = (await post(proxy, session, asked)).json()
        text, use = first["content"]
        assert text["type"] == "text" and text["text"].strip() == "let me see"
        assert (use["type"], use["name"], use["input"]) == (
            "tool_use",
            "add",
            {"a": 2, "b": 3},
        )
        assert first["stop_reason"] == "tool_use"
        assert first["usage"]["output_tokens"] > 0
        result = {
            "type": "tool_result",
            "tool_use_id": use["id"],
            "content": [{"type": "text", "text": "5"}],
        }
        history = [user("2+3?"), {"role": "assistant", "content": first["content"]}]
        asked = body_of(*history, user([result]), tools=[TOOL], system="be brief")
        second = (await post(proxy, session, asked)).json()
        assert second["content"] == [{"type": "text", "text": "it is 5"}]
        assert second["stop_reason"] == "end_turn"
        (row,) = session.rows()
    assert [turn.trained for turn in row.turns] == [True, True]
    assert server.tokenizer.decode(row.tokens).startswith("<|system|>tools: add<|end|>")


async def test_an_anthropic_message_is_streamed_as_events():
    async with scripted_proxy(adder) as (proxy, _):
        session = await proxy.open_session()
        reply = await post(proxy, session, body_of(user("2+3?"), tools=[TOOL], stream=True))
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = [
        json.loads(line.removeprefix("data: "))
        for line in reply.text.split("\n")
        if line.startswith("data: ")
    ]
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(d.get("text", "") for d in deltas).strip() == "let me see"
    assert json.loads("".join(d.get("partial_json", "") for d in deltas)) == {"a": 2, "b": 3}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_a_limit_and_tool_choice_and_stops_are_translated():
    async with scripted_proxy(lambda prompt, i: "a long answer. indeed") as (proxy, server):
        session = await proxy.open_session()
        short = await post(proxy, session, body_of(user("x"), max_tokens=3))
        assert short.json()["stop_reason"] == "max_tokens"
        asked = body_of(
            user("x"),
            stop_sequences=[". "],
            top_k=5,
            tools=[TOOL],
            tool_choice={"type": "none"},
        )
        assert (await post(proxy, session, asked)).json()["content"][0][
            "text"
        ] == "a long answer"
    assert (server.asked[1]["stop"], server.asked[1]["top_k"]) == ([". "], 5)


async def test_count_tokens_counts_the_prompt_without_sampling():
    async with scripted_proxy(adder) as (proxy, server):
        session = await proxy.open_session()
        counted = await post(
            proxy, session, body_of(user("hello")), path="/v1/messages/count_tokens"
        )
        assert server.asked == []
        sampled = (await post(proxy, session, body_of(user("hello")))).json()
    assert counted.json()["input_tokens"] == sampled["usage"]["input_tokens"]


async def test_errors_have_the_anthropic_shape():
    async with scripted_proxy(adder) as (proxy, _):
        session = await proxy.open_session()
        for body in (body_of(), body_of({"role": "tool", "content": "x"}), {"model": "m"}):
            reply = await post(proxy, session, body)
            assert reply.status_code == 400
            assert reply.json()["type"] == "error"
            assert reply.json()["error"]["type"] == "invalid_request_error"
        session.api_key = "wrong"
        reply = await post(proxy, session, body_of(user("x")))
    assert (reply.status_code, reply.json()["error"]["type"]) == (401, "authentication_error")


async def test_the_anthropic_package_works_unchanged():
    anthropic = pytest.importorskip("anthropic")
    async with scripted_proxy(adder) as (proxy, _):
        session = await proxy.open_session()
        async with anthropic.AsyncAnthropic(
            base_url=session.url, api_key=session.api_key
        ) as client:
            whole = await client.messages.create(**body_of(user("2+3?"), tools=[TOOL]))
            async with client.messages.stream(**body_of(user("2+3?"), tools=[TOOL])) as stream:
                streamed = await stream.get_final_message()
    assert whole.content[1].input == streamed.content[1].input == {"a": 2, "b": 3}
    assert whole.stop_reason == streamed.stop_reason == "tool_use"

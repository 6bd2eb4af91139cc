"""OpenAI's Chat and Completions APIs, called by the openai package."""

from __future__ import annotations

import json

import openai
import pytest

from atroposlib.envs.rollout.groups import from_nodes
from tests.generation.proxy.proxy_kit import (
    ADD,
    adder,
    openai_client,
    scripted_proxy,
    tool_call,
)

HELLO = [{"role": "user", "content": "hello"}]


async def run_tool_agent(client: openai.AsyncOpenAI, question: str) -> str:
    """An agent without any import of this project."""
    messages = [{"role": "user", "content": question}]
    for _ in range(4):
        reply = await client.chat.completions.create(
            model="gpt-5", messages=messages, tools=[ADD], tool_choice="auto"
        )
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            given = json.loads(call.function.arguments)
            content = str(given["a"] + given["b"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    raise AssertionError("the agent did not finish")


async def test_an_unmodified_tool_agent_trains_through_the_proxy():
    async with scripted_proxy(adder) as (proxy, server):
        rows = []
        for _ in range(2):
            async with await proxy.open_session() as session:
                async with openai_client(session) as client:
                    assert await run_tool_agent(client, "2+3?") == "it is 5"
                session.reward(1.0)
                (row,) = session.rows()
                rows.append(row)
        text = server.tokenizer.decode(row.tokens)
        trained = server.tokenizer.decode([t for t in row.masked_tokens if t >= 0])
    assert text == (
        "<|system|>tools: add<|end|><|user|>2+3?<|end|><|assistant|>let me see "
        + tool_call(2, 3)
        + "<|end|><|tool|>5<|end|><|assistant|>it is 5<|end|>"
    )
    assert trained == f"let me see {tool_call(2, 3)}<|end|>it is 5<|end|>"
    group = from_nodes(rows, [row.reward for row in rows])
    assert group["scores"] == [1.0, 1.0]
    assert group["tokens"][0] == row.tokens


async def test_a_tool_call_is_streamed_in_deltas_that_add_up():
    async with scripted_proxy(adder) as (proxy, _):
        async with await proxy.open_session() as session, openai_client(session) as client:
            stream = await client.chat.completions.create(
                model="m",
                messages=HELLO,
                tools=[ADD],
                stream=True,
                stream_options={"include_usage": True},
            )
            name, arguments, text, reasons, usage = "", "", "", [], None
            async for chunk in stream:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    reasons.append(choice.finish_reason)
                    for call in choice.delta.tool_calls or []:
                        name += call.function.name or ""
                        arguments += call.function.arguments or ""
    assert (name, json.loads(arguments)) == ("add", {"a": 2, "b": 3})
    assert text.strip() == "let me see"
    assert [reason for reason in reasons if reason] == ["tool_calls"]
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0


async def test_a_long_text_is_streamed_in_pieces_that_add_up():
    said = "all of it " * 40
    async with scripted_proxy(lambda prompt, i: said) as (proxy, _):
        async with await proxy.open_session() as session, openai_client(session) as client:
            stream = await client.chat.completions.create(
                model="m", messages=HELLO, stream=True
            )
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(pieces) == said
    assert len(pieces) > 5


async def test_every_choice_has_usage_logprobs_and_a_separate_row():
    async with scripted_proxy(lambda prompt, i: f"word {i}") as (proxy, server):
        async with await proxy.open_session() as session, openai_client(session) as client:
            reply = await client.chat.completions.create(
                model="m",
                messages=HELLO,
                n=3,
                logprobs=True,
                top_logprobs=1,
                seed=1,
                top_p=0.9,
            )
            rows = session.rows()
    assert [choice.message.content for choice in reply.choices] == [
        "word 0",
        "word 1",
        "word 2",
    ]
    assert reply.model == "m"
    entries = reply.choices[1].logprobs.content
    assert "".join(entry.token for entry in entries) == "word 1<|end|>"
    assert [entry.logprob for entry in entries] == rows[1].logprobs[-len(entries) :]
    assert entries[0].top_logprobs[0].logprob == entries[0].logprob
    assert reply.usage.completion_tokens == 3 * len(entries)
    assert (server.asked[0]["seed"], server.asked[0]["top_p"]) == (1, 0.9)


async def test_stop_strings_and_text_parts_are_accepted():
    async with scripted_proxy(lambda prompt, i: "one. two. three") as (proxy, server):
        async with await proxy.open_session() as session, openai_client(session) as client:
            parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
            messages = [{"role": "user", "content": parts}]
            reply = await client.chat.completions.create(
                model="m", messages=messages, stop=" two", max_completion_tokens=20
            )
            assert reply.choices[0].message.content == "one."
            messages += [reply.choices[0].message, {"role": "user", "content": "on"}]
            await client.chat.completions.create(model="m", messages=messages, stop=" two")
            (row,) = session.rows()
    assert server.asked[0]["stop"] == [" two"]
    assert server.asked[0]["max_tokens"] == 20
    # What was cut for the agent is whole in the row, so the second turn extends the first.
    assert "ab<|end|><|assistant|>one. two. three<|end|><|user|>on" in server.tokenizer.decode(
        row.tokens
    )


async def test_an_image_and_a_response_format_are_rejected_with_their_location():
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    async with scripted_proxy(adder) as (proxy, _):
        async with await proxy.open_session() as session, openai_client(session) as client:
            with pytest.raises(openai.BadRequestError, match=r"messages\[0\]"):
                await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": [image]}]
                )
            with pytest.raises(openai.BadRequestError, match="response_format"):
                await client.chat.completions.create(
                    model="m", messages=HELLO, response_format={"type": "json_object"}
                )
            with pytest.raises(openai.BadRequestError, match=r"\$\.messages"):
                await client.chat.completions.create(model="m", messages="hello")


async def test_text_completions_are_returned_whole_and_streamed():
    async with scripted_proxy(lambda prompt, i: "said after " + prompt) as (proxy, _):
        async with await proxy.open_session() as session, openai_client(session) as client:
            whole = await client.completions.create(model="m", prompt="abc", logprobs=1)
            stream = await client.completions.create(model="m", prompt="abc", stream=True)
            streamed = "".join([chunk.choices[0].text async for chunk in stream])
    assert whole.choices[0].text == streamed == "said after abc"
    assert "".join(whole.choices[0].logprobs.tokens) == "said after abc<|end|>"


async def test_the_api_key_selects_the_session():
    async with scripted_proxy(adder) as (proxy, _):
        first, second = await proxy.open_session(), await proxy.open_session()
        async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=second.api_key) as c:
            await c.chat.completions.create(model="m", messages=HELLO)
            assert [model.id async for model in c.models.list()] == ["m"]
        assert (len(first.rows()), len(second.rows())) == (0, 1)
        async with openai.AsyncOpenAI(
            base_url=f"{proxy.url}/v1", api_key="nobody"
        ) as stranger:
            with pytest.raises(openai.AuthenticationError, match="no open session"):
                await stranger.chat.completions.create(model="m", messages=HELLO)


async def test_sampling_parameters_fixed_by_the_owner_override_those_of_the_agent():
    async with scripted_proxy(adder) as (proxy, server):
        fixed = {"temperature": 1.0, "max_tokens": 7}
        async with await proxy.open_session(sampling=fixed) as session:
            async with openai_client(session) as client:
                await client.chat.completions.create(
                    model="m", messages=HELLO, temperature=0, max_tokens=99
                )
    assert (server.asked[0]["temperature"], server.asked[0]["max_tokens"]) == (1.0, 7)


async def test_disabled_parallel_tool_calls_are_reduced_to_one():
    two = tool_call(1, 1) + "\n" + tool_call(2, 2)
    async with scripted_proxy(lambda prompt, i: two) as (proxy, _):
        async with await proxy.open_session() as session, openai_client(session) as client:
            both = await client.chat.completions.create(model="m", messages=HELLO, tools=[ADD])
            one = await client.chat.completions.create(
                model="m", messages=HELLO, tools=[ADD], parallel_tool_calls=False
            )
    assert len(both.choices[0].message.tool_calls) == 2
    assert len(one.choices[0].message.tool_calls) == 1

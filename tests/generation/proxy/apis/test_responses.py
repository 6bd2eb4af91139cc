"""OpenAI's Responses API, called by the openai package."""

from __future__ import annotations

import json

from tests.generation.proxy.proxy_kit import ADD, adder, openai_client, scripted_proxy

HELLO = [{"role": "user", "content": "hello"}]


async def test_a_response_continues_an_earlier_response_with_tool_results():
    tool = {"type": "function", **ADD["function"]}
    async with scripted_proxy(adder) as (proxy, server):
        async with await proxy.open_session() as session, openai_client(session) as client:
            first = await client.responses.create(model="m", input="2+3?", tools=[tool])
            message, call = first.output
            assert message.content[0].text.strip() == "let me see"
            assert json.loads(call.arguments) == {"a": 2, "b": 3}
            result = {"type": "function_call_output", "call_id": call.call_id, "output": "5"}
            second = await client.responses.create(
                model="m", input=[result], tools=[tool], previous_response_id=first.id
            )
            assert second.output_text == "it is 5"
            assert second.status == "completed"
            (row,) = session.rows()
    assert [turn.trained for turn in row.turns] == [True, True]
    assert second.usage.input_tokens == row.turns[1].start
    assert server.tokenizer.decode(row.tokens).count("<tool_call>") == 1


async def test_a_response_accepts_the_whole_history_as_items():
    tool = {"type": "function", **ADD["function"]}
    async with scripted_proxy(adder) as (proxy, _):
        async with await proxy.open_session() as session, openai_client(session) as client:
            items = [{"role": "user", "content": [{"type": "input_text", "text": "2+3?"}]}]
            first = await client.responses.create(
                model="m", input=items, tools=[tool], instructions="be brief"
            )
            items += [item.model_dump(exclude_none=True) for item in first.output]
            call_id = first.output[1].call_id
            items.append({"type": "function_call_output", "call_id": call_id, "output": "5"})
            second = await client.responses.create(
                model="m", input=items, tools=[tool], instructions="be brief"
            )
            assert second.output_text == "it is 5"
            assert len(session.rows()) == 1


async def test_a_response_is_streamed_as_events():
    tool = {"type": "function", **ADD["function"]}
    async with scripted_proxy(adder) as (proxy, _):
        async with await proxy.open_session() as session, openai_client(session) as client:
            text, arguments, kinds, numbers = "", "", [], []
            async with client.responses.stream(
                model="m", input="2+3?", tools=[tool]
            ) as stream:
                async for event in stream:
                    kinds.append(event.type)
                    numbers.append(event.sequence_number)
                    if event.type == "response.output_text.delta":
                        text += event.delta
                    if event.type == "response.function_call_arguments.delta":
                        arguments += event.delta
                final = await stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"
    assert numbers == list(range(len(numbers)))
    assert json.loads(arguments) == {"a": 2, "b": 3}
    assert text == final.output[0].content[0].text

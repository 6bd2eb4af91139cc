"""OpenAI's Responses API: items to chat messages, responses to items and events. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atroposlib.errors import InferenceRefused
from atroposlib.generation.chat.pictures import chat_content
from atroposlib.generation.proxy.apis.agent_api import AgentApi, event_frame, openai_body
from atroposlib.generation.proxy.apis.chat import chat_message, pieces
from atroposlib.generation.proxy.apis.exchange import (
    ApiBody,
    Json,
    SamplingRequest,
    SamplingResponse,
    bare_id,
    chat_call,
    function_tools,
    plain_messages,
    reject_formats,
    sampling_of,
    tool_message,
)
from atroposlib.generation.sampling.generation import stop_strings


class ResponsesBody(ApiBody, kw_only=True):
    """Fields of a Responses request that are read here; the rest is passed on."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    truncation: str | None = None
    metadata: dict[str, Any] | None = None
    top_logprobs: int | None = None
    prompt: dict[str, Any] | None = None
    stop: str | list[str] | None = None
    stream_options: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ResponsesApi(AgentApi[ResponsesBody]):
    """POST responses."""

    body_type = ResponsesBody
    rejected_fields = ("background", "conversation", "prompt")

    def read(self, raw: Json) -> SamplingRequest:
        body = self.body
        reject_formats((body.text or {}).get("format"))
        earlier: list[Json] | None = []
        if body.previous_response_id:
            earlier = self.session.conversations.get(bare_id(body.previous_response_id))
        if earlier is None:
            raise InferenceRefused(404, "previous_response_id: no such response here")
        # A later response continues it without these instructions, as in OpenAI's API.
        self._conversation = [*earlier, *messages_of(body.input)]
        messages = self._conversation
        if body.instructions:
            messages = [{"role": "system", "content": body.instructions}, *messages]
        return SamplingRequest(
            messages=plain_messages(messages),
            tools=function_tools(_nested_tools(body.tools)),
            tool_choice=_nested_choice(body.tool_choice),
            stop=stop_strings(raw),
            sampling=sampling_of(raw, ResponsesBody, max_tokens=body.max_output_tokens),
            template=body.chat_template_kwargs,
            split=body.split,
            one_tool_call=body.parallel_tool_calls is False,
        )

    def reply(self, response: SamplingResponse) -> Json:
        self._store_conversation(response)
        return responses_reply(response, self.body)

    def frames(self, response: SamplingResponse) -> Iterator[bytes]:
        self._store_conversation(response)
        for number, event in enumerate(responses_events(response, self.body)):
            yield event_frame({**event, "sequence_number": number})

    def error_frame(self, status: int, message: str) -> bytes:
        error = openai_body(status, message)["error"]
        return event_frame({**error, "type": "error", "sequence_number": 0})

    def _store_conversation(self, response: SamplingResponse) -> None:
        turns = [*self._conversation, chat_message(response.choices[0])]
        self.session.conversations[response.id] = turns


def messages_of(items: str | Sequence[Mapping[str, Any]]) -> list[Json]:
    """Chat messages of input items.

    An assistant's text and the calls after it become a single message, because they were a
    single turn of the model.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[Json] = []
    for i, item in enumerate(items):
        kind = item.get("type") or "message"
        if kind == "message":
            content = chat_content(item.get("content"), f"input[{i}]")
            messages.append({"role": item.get("role"), "content": content})
        elif kind == "function_call":
            call_id, arguments = item.get("call_id"), item.get("arguments") or "{}"
            error = f"input[{i}]: a function_call has a call_id and a name"
            _add_call(messages, chat_call(call_id, item.get("name"), arguments, error=error))
        elif kind == "function_call_output":
            output = item.get("output")
            result = output if isinstance(output, (str, list)) else json.dumps(output)
            messages.append(tool_message(item.get("call_id"), result, f"input[{i}]"))
        elif kind != "reasoning":  # the reasoning is part of the turn's text
            raise InferenceRefused(400, f"input[{i}]: items of type {kind} are not served")
    return messages


def responses_reply(response: SamplingResponse, body: ResponsesBody) -> Json:
    reply = opening_reply(response, body)
    cut = response.choices[0].finish_reason == "length"
    reply["status"] = "incomplete" if cut else "completed"
    reply["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
    reply["output"] = output_items(response)
    reply["usage"] = {
        "input_tokens": response.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": response.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": response.prompt_tokens + response.completion_tokens,
    }
    return reply


def opening_reply(response: SamplingResponse, body: ResponsesBody) -> Json:
    """The response at the start of a stream: in progress and empty."""
    return {
        "id": f"resp_{response.id}",
        "object": "response",
        "created_at": response.created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "model": response.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_p": 1.0,
        "truncation": body.truncation or "disabled",
        "usage": None,
        "metadata": body.metadata or {},
    }


def output_items(response: SamplingResponse) -> list[Json]:
    """A message if there is text, then the calls."""
    choice = response.choices[0]
    items: list[Json] = []
    if choice.content or not choice.tool_calls:
        part = {"type": "output_text", "text": choice.content or "", "annotations": []}
        items.append(
            {
                "id": f"msg_{response.id}",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [part],
            }
        )
    for i, call in enumerate(choice.tool_calls):
        items.append(
            {
                "id": f"fc_{response.id}_{i}",
                "type": "function_call",
                "status": "completed",
                "call_id": call["id"],
                "name": call["function"]["name"],
                "arguments": call["function"]["arguments"],
            }
        )
    return items


def _add_call(messages: list[Json], call: Json) -> None:
    if messages and messages[-1].get("role") == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def _nested_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Json] | None:
    """``{"type": "function", "name": ...}`` -> ``{"type": "function", "function": {...}}``."""
    nested: list[Json] = []
    for tool in tools or []:
        if tool.get("type") != "function" or "function" in tool:
            nested.append(dict(tool))
            continue
        kept = ("name", "description", "parameters", "strict")
        function = {k: tool[k] for k in kept if tool.get(k) is not None}
        nested.append({"type": "function", "function": function})
    return nested or None


def _nested_choice(choice: str | Mapping[str, Any] | None) -> Any:
    if isinstance(choice, Mapping) and "name" in choice and "function" not in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def responses_events(response: SamplingResponse, body: ResponsesBody) -> Iterator[Json]:
    """Events of a stream: ``created``, ``in_progress``, items and deltas, whole response."""
    opening, whole = opening_reply(response, body), responses_reply(response, body)
    yield {"type": "response.created", "response": opening}
    yield {"type": "response.in_progress", "response": opening}
    for i, item in enumerate(whole["output"]):
        events = _message_events if item["type"] == "message" else _call_events
        yield from events(i, item)
    yield {"type": f"response.{whole['status']}", "response": whole}


def _message_events(i: int, item: Json) -> Iterator[Json]:
    part = item["content"][0]
    at = {"output_index": i, "item_id": item["id"], "content_index": 0}
    empty = {**item, "status": "in_progress", "content": []}
    yield {"type": "response.output_item.added", "output_index": i, "item": empty}
    yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
    for text in pieces(part["text"]):
        yield {"type": "response.output_text.delta", **at, "delta": text, "logprobs": []}
    yield {"type": "response.output_text.done", **at, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", **at, "part": part}
    yield {"type": "response.output_item.done", "output_index": i, "item": item}


def _call_events(i: int, item: Json) -> Iterator[Json]:
    at = {"output_index": i, "item_id": item["id"]}
    empty = {**item, "status": "in_progress", "arguments": ""}
    yield {"type": "response.output_item.added", "output_index": i, "item": empty}
    for text in pieces(item["arguments"]):
        yield {"type": "response.function_call_arguments.delta", **at, "delta": text}
    done = {"name": item["name"], "arguments": item["arguments"]}
    yield {"type": "response.function_call_arguments.done", **at, **done}
    yield {"type": "response.output_item.done", "output_index": i, "item": item}

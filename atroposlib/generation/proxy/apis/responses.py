"""OpenAI's Responses API: its items as chat messages, and an answer as its items. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from atroposlib.errors import InferenceRefused
from atroposlib.generation.chat.template import content_text
from atroposlib.generation.proxy.apis.request import (
    Answer,
    Ask,
    Json,
    function_tools,
    plain_messages,
    refuse_formats,
    sampling_of,
)


class ResponsesBody(msgspec.Struct, kw_only=True):
    """The fields of a Responses request that are read here; all others are passed on."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    truncation: str | None = None
    background: bool | None = None
    metadata: dict[str, Any] | None = None
    max_tool_calls: int | None = None
    top_logprobs: int | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    stop: str | list[str] | None = None
    split: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def responses_ask(
    raw: Mapping[str, Any], body: ResponsesBody, earlier: Sequence[Json]
) -> tuple[Ask, list[Json]]:
    """The ask, and the conversation without instructions, for a later response to go on.

    Args:
        earlier: the conversation of ``previous_response_id``; its instructions are not part
            of it, as in the original API.
    """
    refuse_formats((body.text or {}).get("format"))
    for name in ("background", "conversation", "prompt"):
        if getattr(body, name):
            raise InferenceRefused(400, f"{name}: not served")
    conversation = [*earlier, *messages_of(body.input)]
    spoken = [{"role": "system", "content": body.instructions}] if body.instructions else []
    ask = Ask(
        messages=plain_messages([*spoken, *conversation]),
        tools=function_tools(_nested_tools(body.tools)),
        tool_choice=_nested_choice(body.tool_choice),
        stop=[body.stop] if isinstance(body.stop, str) else body.stop,
        sampling=sampling_of(raw, ResponsesBody, max_tokens=body.max_output_tokens),
        template=body.chat_template_kwargs,
        split=body.split,
        one_tool_call=body.parallel_tool_calls is False,
    )
    return ask, conversation


def messages_of(items: str | Sequence[Mapping[str, Any]]) -> list[Json]:
    """Chat messages of input items.

    An assistant's text and the calls after it were one turn of the model, so they become one
    message again.
    """
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages: list[Json] = []
    for i, item in enumerate(items):
        kind = item.get("type") or "message"
        if kind == "message":
            text = content_text(item.get("content"), f"input[{i}]")
            messages.append({"role": item.get("role"), "content": text})
        elif kind == "function_call":
            _add_call(messages, _chat_call(item, i))
        elif kind == "function_call_output":
            messages.append(_tool_message(item, i))
        elif kind != "reasoning":  # what the model thought is in the text of its turn
            raise InferenceRefused(400, f"input[{i}]: items of type {kind} are not served")
    return messages


def assistant_message(answer: Answer) -> Json:
    """The first choice as the message that later requests carry."""
    choice = answer.choices[0]
    message: Json = {"role": "assistant", "content": choice.content}
    return {**message, "tool_calls": choice.tool_calls} if choice.tool_calls else message


def responses_reply(answer: Answer, body: ResponsesBody) -> Json:
    """The whole response."""
    reply = opening_reply(answer, body)
    cut = answer.choices[0].finish_reason == "length"
    reply["status"] = "incomplete" if cut else "completed"
    reply["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
    reply["output"] = output_items(answer)
    reply["usage"] = {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": answer.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.prompt_tokens + answer.completion_tokens,
    }
    return reply


def opening_reply(answer: Answer, body: ResponsesBody) -> Json:
    """The response as a stream announces it: in progress, with nothing in it."""
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "model": answer.model,
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


def output_items(answer: Answer) -> list[Json]:
    """A message if there is text, then the calls."""
    choice = answer.choices[0]
    items: list[Json] = []
    if choice.content or not choice.tool_calls:
        part = {"type": "output_text", "text": choice.content or "", "annotations": []}
        items.append(
            {
                "id": f"msg_{answer.id}",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [part],
            }
        )
    for i, call in enumerate(choice.tool_calls):
        items.append(
            {
                "id": f"fc_{answer.id}_{i}",
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


def _chat_call(item: Mapping[str, Any], i: int) -> Json:
    call_id, name = item.get("call_id"), item.get("name")
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise InferenceRefused(400, f"input[{i}]: a function_call has a call_id and a name")
    function = {"name": name, "arguments": item.get("arguments") or "{}"}
    return {"id": call_id, "type": "function", "function": function}


def _tool_message(item: Mapping[str, Any], i: int) -> Json:
    output = item.get("output")
    if not isinstance(output, (str, list)):
        output = json.dumps(output)
    content = content_text(output, f"input[{i}]")
    return {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}


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

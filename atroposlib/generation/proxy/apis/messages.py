"""Anthropic's Messages API: its blocks as chat messages, and an answer as its blocks. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from atroposlib.errors import InferenceRefused
from atroposlib.generation.chat.template import content_text
from atroposlib.generation.proxy.apis.chat import pieces
from atroposlib.generation.proxy.apis.request import (
    Answer,
    Ask,
    Json,
    function_tools,
    plain_messages,
    refuse_formats,
    sampling_of,
)

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class MessagesBody(msgspec.Struct, kw_only=True):
    """The fields of a Messages request that are read here; all others are passed on."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    stream: bool | None = None
    thinking: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    container: Any = None
    context_management: Any = None
    mcp_servers: Any = None
    output_config: dict[str, Any] | None = None
    betas: list[str] | None = None
    cache_control: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    split: str | None = None


def messages_ask(raw: Mapping[str, Any], body: MessagesBody) -> Ask:
    """The ask of a Messages request."""
    for name in ("output_format", "mcp_servers", "container"):
        if getattr(body, name):
            raise InferenceRefused(400, f"{name}: not served")
    refuse_formats((body.output_config or {}).get("format"))
    choice = body.tool_choice or {}
    messages: list[Json] = []
    if body.system:
        messages.append({"role": "system", "content": content_text(body.system, "system")})
    for i, message in enumerate(body.messages):
        messages += _chat_messages(message, i)
    if not body.messages:
        messages = []
    return Ask(
        messages=plain_messages(messages),
        tools=function_tools([_nested_tool(tool) for tool in body.tools or []]),
        tool_choice=_nested_choice(choice),
        stop=[word for word in body.stop_sequences or [] if word] or None,
        sampling=sampling_of(raw, MessagesBody, max_tokens=body.max_tokens),
        template=body.chat_template_kwargs,
        split=body.split,
        one_tool_call=bool(choice.get("disable_parallel_tool_use")),
    )


def messages_reply(answer: Answer) -> Json:
    """The whole message."""
    choice = answer.choices[0]
    return {
        **_opening(answer),
        "content": content_blocks(answer),
        "stop_reason": _STOP_REASONS.get(choice.finish_reason, "end_turn"),
        "stop_sequence": None,
        "usage": _usage(answer, answer.completion_tokens),
    }


def content_blocks(answer: Answer) -> list[Json]:
    """A text block if there is text, then the calls."""
    choice = answer.choices[0]
    blocks: list[Json] = []
    if choice.content:
        blocks.append({"type": "text", "text": choice.content})
    for call in choice.tool_calls:
        function = call["function"]
        given = _input_of(function["arguments"])
        named = {"id": call["id"], "name": function["name"], "input": given}
        blocks.append({"type": "tool_use", **named})
    return blocks


def messages_events(answer: Answer) -> Iterator[Json]:
    """The events in which the message is streamed."""
    whole = messages_reply(answer)
    yield {"type": "message_start", "message": _opening(answer)}
    for i, block in enumerate(whole["content"]):
        if block["type"] == "text":
            empty, kind, text = {**block, "text": ""}, "text", block["text"]
        else:
            empty, kind = {**block, "input": {}}, "input_json"
            text = json.dumps(block["input"], ensure_ascii=False)
        field = "text" if kind == "text" else "partial_json"
        yield {"type": "content_block_start", "index": i, "content_block": empty}
        for piece in pieces(text):
            delta = {"type": f"{kind}_delta", field: piece}
            yield {"type": "content_block_delta", "index": i, "delta": delta}
        yield {"type": "content_block_stop", "index": i}
    ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": whole["usage"]}
    yield {"type": "message_stop"}


def _input_of(arguments: str) -> Json:
    """Anthropic's input is an object; a model may write anything."""
    try:
        given = json.loads(arguments or "{}")
    except ValueError:
        return {"arguments": arguments}
    return given if isinstance(given, dict) else {"arguments": given}


def _opening(answer: Answer) -> Json:
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(answer, 0),
    }


def _usage(answer: Answer, output_tokens: int) -> Json:
    return {"input_tokens": answer.prompt_tokens, "output_tokens": output_tokens}


def _chat_messages(message: Mapping[str, Any], i: int) -> list[Json]:
    """One message of Anthropic's may hold several of OpenAI's: results, then more text."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise InferenceRefused(400, f"messages[{i}].role: user or assistant")
    where = f"messages[{i}]"
    if not isinstance(content, list):
        return [{"role": role, "content": content_text(content, where)}]
    texts: list[Any] = []
    calls: list[Json] = []
    results: list[Json] = []
    for block in content:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_use":
            calls.append(_chat_call(block, where))
        elif kind == "tool_result":
            results.append(_tool_message(block, where))
        elif kind not in ("thinking", "redacted_thinking"):  # the turn's text holds it
            texts.append(block)
    if calls:
        text = content_text(texts, where)
        return [*results, {"role": role, "content": text, "tool_calls": calls}]
    if texts or not results:
        return [*results, {"role": role, "content": content_text(texts, where)}]
    return results


def _chat_call(block: Mapping[str, Any], where: str) -> Json:
    call_id, name = block.get("id"), block.get("name")
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise InferenceRefused(400, f"{where}: a tool_use has an id and a name")
    arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _tool_message(block: Mapping[str, Any], where: str) -> Json:
    content = content_text(block.get("content"), where)
    return {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}


def _nested_tool(tool: Mapping[str, Any]) -> Json:
    if tool.get("type") not in (None, "custom"):
        return dict(tool)  # one that only Anthropic runs: refused by its type
    function: Json = {"name": tool.get("name")}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    function["parameters"] = tool.get("input_schema") or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _nested_choice(choice: Mapping[str, Any]) -> Any:
    if choice.get("type") == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return _CHOICES.get(str(choice.get("type")))

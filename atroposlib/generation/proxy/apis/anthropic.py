"""Anthropic's Messages API: blocks to chat messages, responses to blocks and events. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from atroposlib.errors import InferenceRefused
from atroposlib.generation.chat.pictures import chat_content
from atroposlib.generation.chat.template import content_text
from atroposlib.generation.proxy.apis.agent_api import AgentApi, anthropic_body, event_frame
from atroposlib.generation.proxy.apis.chat import pieces
from atroposlib.generation.proxy.apis.exchange import (
    ApiBody,
    Json,
    SamplingRequest,
    SamplingResponse,
    chat_call,
    function_tools,
    plain_messages,
    reject_formats,
    sampling_of,
    tool_message,
)
from atroposlib.generation.sampling.generation import stop_strings

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class MessagesBody(ApiBody, kw_only=True):
    """Fields of a Messages request that are read here; the rest is passed on."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesApi(AgentApi[MessagesBody]):
    """POST messages."""

    body_type = MessagesBody
    rejected_fields = ("output_format", "mcp_servers", "container")
    keep_alive = b'event: ping\ndata: {"type":"ping"}\n\n'

    def read(self, raw: Json) -> SamplingRequest:
        body, choice = self.body, self.body.tool_choice or {}
        reject_formats((body.output_config or {}).get("format"))
        messages: list[Json] = []
        if body.system and body.messages:
            system = content_text(body.system, "system")
            messages.append({"role": "system", "content": system})
        for i, message in enumerate(body.messages):
            messages += _chat_messages(message, f"messages[{i}]")
        return SamplingRequest(
            messages=plain_messages(messages),
            tools=function_tools([_nested_tool(tool) for tool in body.tools or []]),
            tool_choice=_nested_choice(choice),
            stop=stop_strings({"stop": body.stop_sequences}),
            sampling=sampling_of(raw, MessagesBody, max_tokens=body.max_tokens),
            template=body.chat_template_kwargs,
            split=body.split,
            one_tool_call=bool(choice.get("disable_parallel_tool_use")),
        )

    def reply(self, response: SamplingResponse) -> Json:
        reason = response.choices[0].finish_reason
        return {
            **_opening(response),
            "content": content_blocks(response),
            "stop_reason": _STOP_REASONS.get(reason, "end_turn"),
            "usage": _usage(response, response.completion_tokens),
        }

    def frames(self, response: SamplingResponse) -> Iterator[bytes]:
        return map(event_frame, messages_events(_opening(response), self.reply(response)))

    def error_frame(self, status: int, message: str) -> bytes:
        return event_frame(anthropic_body(status, message))


def content_blocks(response: SamplingResponse) -> list[Json]:
    """A text block if there is text, then the calls."""
    choice = response.choices[0]
    blocks: list[Json] = []
    if choice.content:
        blocks.append({"type": "text", "text": choice.content})
    for call in choice.tool_calls:
        function = call["function"]
        arguments = _input_of(function["arguments"])
        named = {"id": call["id"], "name": function["name"], "input": arguments}
        blocks.append({"type": "tool_use", **named})
    return blocks


def messages_events(opening: Json, whole: Json) -> Iterator[Json]:
    """Events of a stream of the ``whole`` message; ``opening`` is the message without content."""
    yield {"type": "message_start", "message": opening}
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
    """Arguments as the JSON object that Anthropic's clients expect."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return {"arguments": arguments}
    return value if isinstance(value, dict) else {"arguments": value}


def _opening(response: SamplingResponse) -> Json:
    return {
        "id": f"msg_{response.id}",
        "type": "message",
        "role": "assistant",
        "model": response.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(response, 0),
    }


def _usage(response: SamplingResponse, output_tokens: int) -> Json:
    return {"input_tokens": response.prompt_tokens, "output_tokens": output_tokens}


def _chat_messages(message: Mapping[str, Any], where: str) -> list[Json]:
    """OpenAI messages of an Anthropic message: tool results, then content and calls."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise InferenceRefused(400, f"{where}.role: user or assistant")
    if not isinstance(content, list):
        return [{"role": role, "content": chat_content(content, where)}]
    parts: list[Any] = []
    calls: list[Json] = []
    results: list[Json] = []
    skipped = ("thinking", "redacted_thinking")  # the reasoning is part of the turn's text
    for block in content:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_use":
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            error = f"{where}: a tool_use has an id and a name"
            calls.append(chat_call(block.get("id"), block.get("name"), arguments, error=error))
        elif kind == "tool_result":
            results.append(tool_message(block.get("tool_use_id"), block.get("content"), where))
        elif kind not in skipped:
            parts.append(block)
    if results and not parts and not calls:
        return results
    turn = {"role": role, "content": chat_content(parts, where)}
    return [*results, {**turn, "tool_calls": calls} if calls else turn]


def _nested_tool(tool: Mapping[str, Any]) -> Json:
    if tool.get("type") not in (None, "custom"):
        return dict(tool)  # a tool that only Anthropic runs; function_tools rejects it
    function: Json = {"name": tool.get("name")}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    function["parameters"] = tool.get("input_schema") or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _nested_choice(choice: Mapping[str, Any]) -> Any:
    if choice.get("type") == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return _CHOICES.get(str(choice.get("type")))

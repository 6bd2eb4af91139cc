"""SamplingRequest and SamplingResponse: the common form of all APIs. Pure.

chat body ---------.
Responses body -----> SamplingRequest -> the session samples -> SamplingResponse -> reply
Messages body -----'
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from atroposlib.errors import InferenceRefused
from atroposlib.generation.chat.pictures import chat_content
from atroposlib.generation.chat.template import plain_message
from atroposlib.generation.sampling.generation import Generation
from atroposlib.generation.sessions.dummy import dummy_allowed
from atroposlib.generation.sessions.sequences import SequenceNode, sampled_part
from atroposlib.wire.numbers import finite_float, int64

Json = dict[str, Any]
B = TypeVar("B")

# Fields of requests (OpenAI and similar) that do not change what is sampled here.
IGNORED_FIELDS = frozenset(
    {"include", "metadata", "modalities", "model", "prediction", "store", "user"}
    | {"prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier"}
    | {"reasoning_effort", "verbosity", "background", "betas", "cache_control", "container"}
    | {"context_management", "conversation", "max_tool_calls", "mcp_servers", "output_format"}
)
MAX_CHOICES = 128
MESSAGE_FIELDS = ("role", "content", "tool_calls", "tool_call_id", "name")
ID_HEX_DIGITS = 12


@dataclass(frozen=True, kw_only=True)
class SamplingRequest:
    """Sampling task. ``sampling`` is passed to the inference server unchanged."""

    messages: list[Json] = field(default_factory=list)
    prompt: str | list[int] | None = None  # prompt of a text completion; None: a chat
    tools: list[Json] | None = None
    tool_choice: Any = None
    stop: Sequence[str] = ()
    sampling: Json = field(default_factory=dict)
    template: Json | None = None  # chat_template_kwargs
    split: str | None = None  # "train" or "eval"; None: the session's
    one_tool_call: bool = False  # parallel_tool_calls was false
    keep_prompt: bool = False  # the response includes the prompt's ids

    def keywords(self) -> Json:
        """Arguments of ``ManagedServer.chat_completion`` or ``completion``."""
        fields: Json = {**self.sampling}
        if self.prompt is not None:
            fields["prompt"] = self.prompt
        else:
            fields["messages"] = self.messages
            optional = {
                "tools": self.tools,
                "tool_choice": self.tool_choice,
                "chat_template_kwargs": self.template,
            }
            fields.update({name: value for name, value in optional.items() if value})
        if self.stop:
            fields["stop"] = self.stop
        return fields


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A sampled choice: text and calls for the agent, tokens for the rows."""

    content: str | None
    tool_calls: list[Json]  # {"id", "type": "function", "function": {"name", "arguments"}}
    finish_reason: str
    generation: Generation  # no tokens if the server returns text only


@dataclass(frozen=True, kw_only=True)
class SamplingResponse:
    """Choices that the session sampled for a request."""

    id: str  # 12 hex digits; rewards are posted for chatcmpl-ID, msg_ID or resp_ID
    created: int
    model: str
    choices: list[Choice]
    prompt_tokens: int
    completion_tokens: int
    completion: Any  # completion of the managed session; the key of its nodes
    prompt_ids: list[int] | None = None  # only with keep_prompt


# --- requests ---


class ApiBody(msgspec.Struct, kw_only=True):
    """Fields that the bodies of all APIs have; fields that a body lacks are passed on."""

    temperature: float | None = None
    split: str | None = None
    stream: bool | None = None


def parse_body(body: Any, shape: type[B]) -> B:
    """``body`` as a declared type. Raises InferenceRefused (400) with the field, not its value."""
    try:
        return msgspec.convert(body, shape)
    except msgspec.ValidationError as error:
        raise InferenceRefused(400, str(error)) from None


def sampling_of(
    raw: Mapping[str, Any], read: type[msgspec.Struct], *, max_tokens: int | None
) -> Json:
    """Sampling parameters: the known parameters and every unknown field.

    Unknown fields are passed on, so that the parameters of an inference server work as they
    do without a proxy.
    """
    known = frozenset(read.__struct_fields__) | IGNORED_FIELDS
    fields = {k: v for k, v in raw.items() if k not in known and v is not None}
    extra = fields.pop("extra_body", None) or {}
    if not isinstance(extra, Mapping):
        raise InferenceRefused(400, "extra_body: an object is expected")
    fields.update(extra)
    for name in ("n", "temperature"):
        if raw.get(name) is not None:
            fields[name] = raw[name]
    n = fields.setdefault("n", 1)
    if not isinstance(n, int) or not 1 <= n <= MAX_CHOICES:
        raise InferenceRefused(400, f"n: 1 to {MAX_CHOICES}")
    fields.setdefault("temperature", 1.0)
    if max_tokens:
        fields["max_tokens"] = max_tokens
    for name, value in fields.items():
        if not _is_bounded(value):
            raise InferenceRefused(400, f"{name}: a number is beyond 64 bits")
    return fields


def _is_bounded(value: Any) -> bool:
    """Whether all numbers in a JSON value are finite and of at most 64 bits."""
    if isinstance(value, dict):
        return all(map(_is_bounded, value.values()))
    if isinstance(value, list):
        return all(map(_is_bounded, value))
    if isinstance(value, int):
        return int64(value) is not None
    return not isinstance(value, float) or finite_float(value) is not None


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Messages for chat templates: text or pictures, and only the fields that templates use."""
    if not messages:
        raise InferenceRefused(400, "messages: at least one is needed")
    return [_plain_message(i, message) for i, message in enumerate(messages)]


def _plain_message(i: int, message: Mapping[str, Any]) -> Json:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InferenceRefused(400, f"messages[{i}]: a role is needed")
    kept = {k: message[k] for k in MESSAGE_FIELDS if message.get(k) is not None}
    kept["role"] = "system" if role == "developer" else role  # templates know only system
    kept["content"] = chat_content(message.get("content"), f"messages[{i}]")
    return kept


def function_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Json] | None:
    """Tools that a model can call through its chat template: functions."""
    for i, tool in enumerate(tools or []):
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not isinstance(function, Mapping):
            reason = f"a tool of type {tool.get('type')} is not served, only functions"
            raise InferenceRefused(400, f"tools[{i}]: {reason}")
        if not isinstance(function.get("name"), str):
            raise InferenceRefused(400, f"tools[{i}].function.name: a text is needed")
    return [dict(tool) for tool in tools] if tools else None


def reject_formats(given: Mapping[str, Any] | None) -> None:
    kind = (given or {}).get("type") or "text"
    if kind != "text":
        reason = f"{kind} needs constrained decoding, which would not be the policy"
        raise InferenceRefused(400, f"response_format: {reason}")


def chat_call(call_id: Any, name: Any, arguments: str, *, error: str) -> Json:
    """A tool call of a chat message. ``error`` is the reason of a rejection (400)."""
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise InferenceRefused(400, error)
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def tool_message(call_id: Any, result: Any, where: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": chat_content(result, where)}


# --- responses ---


def new_id() -> str:
    return uuid.uuid4().hex[:ID_HEX_DIGITS]


def bare_id(completion_id: str) -> str:
    """``chatcmpl-0123456789ab`` -> ``0123456789ab``, for the prefix of any API."""
    return completion_id.replace("_", "-").rpartition("-")[2]


def sampling_response(
    completion: Any,
    nodes: Sequence[SequenceNode],
    request: SamplingRequest,
    response_id: str,
    created: int,
    model: str,
) -> SamplingResponse:
    """The response of a completion (openai's type) whose i-th choice is the i-th node."""
    usage = getattr(completion, "usage", None)
    prompt_tokens = int(getattr(usage, "prompt_tokens", 0) or 0)
    choices = [
        _choice(choice, node, request, prompt_tokens)
        for choice, node in zip(completion.choices, nodes)
    ]
    known = request.keep_prompt and nodes and not is_placeholder(nodes[0])
    return SamplingResponse(
        id=response_id,
        created=created,
        model=model,
        choices=choices,
        prompt_tokens=prompt_tokens,
        completion_tokens=int(getattr(usage, "completion_tokens", 0) or 0),
        completion=completion,
        prompt_ids=nodes[0].tokens[:prompt_tokens] if known else None,
    )


def is_placeholder(node: SequenceNode) -> bool:
    """Whether the tokens are placeholders for the text of a server that returns none."""
    return bool(node.metadata.get("dummy_tokens"))


def _choice(
    choice: Any, node: SequenceNode, request: SamplingRequest, prompt_tokens: int
) -> Choice:
    if request.prompt is not None:
        content, calls = choice.text, []
    else:
        content = choice.message.content
        tool_calls = getattr(choice.message, "tool_calls", None) or []
        calls = [plain_message(call) for call in tool_calls]
    if request.one_tool_call:
        calls = calls[:1]
    start = prompt_tokens
    if is_placeholder(node):
        start = 1 if dummy_allowed() else len(node.tokens)
    return Choice(
        content=content,
        tool_calls=calls,
        finish_reason=finish_reason_of(choice.finish_reason),
        generation=sampled_part(node, start),
    )


def finish_reason_of(reason: Any) -> str:
    """OpenAI's finish reason. A generation aborted by new weights is reported as "length"."""
    return "length" if reason == "abort" else str(reason or "stop")

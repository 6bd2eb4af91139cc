"""An agent's request, whichever API it came by, as one shape. Pure.

chat body ---------.
Responses body -----> Ask -> the session samples -> Answer -> the API's own reply
Messages body -----'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import msgspec

from atroposlib.errors import InferenceRefused
from atroposlib.generation.chat.template import content_text
from atroposlib.generation.sampling.generation import DEFAULT_MAX_TOKENS

Json = dict[str, Any]
B = TypeVar("B")

# Fields of OpenAI's and others' requests that change nothing about what is sampled here.
BOOKKEEPING = frozenset(
    {"include", "metadata", "modalities", "model", "prediction", "store", "user"}
    | {"prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier"}
    | {"reasoning_effort", "verbosity"}
)
REFUSED = ("functions", "function_call", "audio", "web_search_options")
MOST_CHOICES = 128
KEPT_OF_A_MESSAGE = ("role", "content", "tool_calls", "tool_call_id", "name")


class Kind(str, Enum):
    """Which call of the managed session answers."""

    CHAT = "chat"
    TEXT = "text"


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What to sample. ``sampling`` goes to the inference server as it stands."""

    kind: Kind = Kind.CHAT
    messages: list[Json] = field(default_factory=list)
    prompt: str | list[int] = ""  # of a text completion
    tools: list[Json] | None = None
    tool_choice: Any = None
    stop: list[str] | None = None
    sampling: Json = field(default_factory=dict)
    template: Json | None = None  # chat_template_kwargs
    split: str | None = None  # "train" or "eval"; None: the session's
    one_tool_call: bool = False  # parallel_tool_calls was false
    keep_prompt: bool = False  # the answer is to name the prompt's ids

    def keywords(self) -> Json:
        """Arguments of ``ManagedServer.chat_completion`` or ``completion``."""
        found: Json = {**self.sampling}
        if self.kind is Kind.TEXT:
            found["prompt"] = self.prompt
        else:
            found["messages"] = self.messages
            optional = {
                "tools": self.tools,
                "tool_choice": self.tool_choice,
                "chat_template_kwargs": self.template,
            }
            found.update({name: value for name, value in optional.items() if value})
        if self.stop:
            found["stop"] = self.stop
        return found


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One sampled answer: as text and calls for the agent, as tokens for the rows."""

    content: str | None
    tool_calls: list[Json]  # {"id", "type": "function", "function": {"name", "arguments"}}
    finish_reason: str
    tokens: list[int]  # (T,) sampled
    logprobs: list[float]  # (T,)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the session sampled for one ask."""

    id: str  # 12 hex digits, under which rewards are posted as chatcmpl-..., msg_..., resp_...
    created: int
    model: str
    choices: list[Choice]
    prompt_tokens: int
    completion_tokens: int
    completion: Any  # what the managed session returned: its nodes are asked for with it
    prompt_ids: list[int] | None = None  # only where the ask said keep_prompt


def parsed(body: Any, shape: type[B]) -> B:
    """``body`` as a declared shape.

    Raises:
        InferenceRefused: 400; names the field that is wrong, not its value.
    """
    try:
        return msgspec.convert(body, shape)
    except msgspec.ValidationError as error:
        raise InferenceRefused(400, str(error)) from None


class ChatBody(msgspec.Struct, kw_only=True):
    """The fields of a chat request that are read here; all others are passed on."""

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    split: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    return_token_ids: bool | None = None
    return_nodes: bool | None = None


class TextBody(msgspec.Struct, kw_only=True):
    """As :class:`ChatBody`, for text completions. One prompt per request."""

    prompt: str | list[int | str | list[int]]
    max_tokens: int | None = None
    temperature: float | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    split: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    return_token_ids: bool | None = None


def chat_ask(raw: Mapping[str, Any], body: ChatBody) -> Ask:
    """The ask of a chat request.

    Raises:
        InferenceRefused: 400; no messages, or an output format that only constrained
            decoding could keep to.
        ConfigError: content that is not text.
    """
    refuse_formats(body.response_format)
    for name in REFUSED:
        if raw.get(name):
            raise InferenceRefused(400, f"{name}: not served")
    return Ask(
        messages=plain_messages(body.messages),
        tools=function_tools(body.tools),
        tool_choice=body.tool_choice,
        stop=stop_list(body.stop),
        sampling=sampling_of(
            raw, ChatBody, max_tokens=body.max_completion_tokens or body.max_tokens
        ),
        template=body.chat_template_kwargs,
        split=body.split,
        one_tool_call=body.parallel_tool_calls is False,
        keep_prompt=bool(body.return_token_ids),
    )


def text_ask(raw: Mapping[str, Any], body: TextBody) -> Ask:
    """The ask of a text completion."""
    if body.echo or body.suffix or (body.best_of or 1) > 1:
        raise InferenceRefused(400, "echo, suffix and best_of are not served")
    return Ask(
        kind=Kind.TEXT,
        prompt=_one_prompt(body.prompt),
        stop=stop_list(body.stop),
        sampling=sampling_of(raw, TextBody, max_tokens=body.max_tokens),
        split=body.split,
        keep_prompt=bool(body.return_token_ids),
    )


def sampling_of(
    raw: Mapping[str, Any], read: type[msgspec.Struct], *, max_tokens: int | None
) -> Json:
    """Sampling parameters: those known here, and every field that nobody here knows.

    What the proxy does not know it hands on, so that an inference server's own parameters
    work as they do without a proxy.
    """
    known = frozenset(read.__struct_fields__) | BOOKKEEPING
    found = {k: v for k, v in raw.items() if k not in known and v is not None}
    extra = found.pop("extra_body", None) or {}
    found.update(extra)
    for name in ("n", "temperature"):
        if raw.get(name) is not None:
            found[name] = raw[name]
    if not 1 <= found.setdefault("n", 1) <= MOST_CHOICES:
        raise InferenceRefused(400, f"n: 1 to {MOST_CHOICES}")
    found.setdefault("temperature", 1.0)
    found["max_tokens"] = max_tokens or DEFAULT_MAX_TOKENS
    return found


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[Json]:
    """Messages as chat templates know them: text content, and only fields that matter."""
    if not messages:
        raise InferenceRefused(400, "messages: at least one is needed")
    return [_plain_message(i, message) for i, message in enumerate(messages)]


def _plain_message(i: int, message: Mapping[str, Any]) -> Json:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise InferenceRefused(400, f"messages[{i}]: a role is needed")
    kept = {k: message[k] for k in KEPT_OF_A_MESSAGE if message.get(k) is not None}
    kept["role"] = "system" if role == "developer" else role  # templates know only system
    kept["content"] = content_text(message.get("content"), f"messages[{i}]")
    return kept


def function_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Json] | None:
    """Tools that a model can call through its chat template: functions."""
    for i, tool in enumerate(tools or []):
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not isinstance(function, Mapping):
            problem = f"a tool of type {tool.get('type')} is not served, only functions"
            raise InferenceRefused(400, f"tools[{i}]: {problem}")
        if not isinstance(function.get("name"), str):
            raise InferenceRefused(400, f"tools[{i}].function.name: a text is needed")
    return [dict(tool) for tool in tools] if tools else None


def refuse_formats(given: Mapping[str, Any] | None) -> None:
    kind = (given or {}).get("type") or "text"
    if kind != "text":
        problem = f"{kind} needs constrained decoding, which would not be the policy"
        raise InferenceRefused(400, f"response_format: {problem}")


def stop_list(stop: str | Sequence[str] | None) -> list[str] | None:
    if stop is None:
        return None
    return [stop] if isinstance(stop, str) else [text for text in stop if text] or None


def _one_prompt(prompt: str | list[Any]) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        return prompt[0]
    if not prompt or not all(isinstance(token, int) for token in prompt):
        raise InferenceRefused(400, "prompt: one text or one list of token ids per request")
    return list(prompt)

"""Completions of a managed session, in the types of the openai package.

Imported at the first reply, not before: the import of the openai package takes a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice

from atroposlib.generation.engines.openai import (
    chat_completion_of,
    completion_of,
    completion_payload,
)
from atroposlib.generation.sampling.generation import Generation

# Fields of type dict serialise dicts without a warning, unlike fields of the openai package.


class ToolMessage(ChatCompletionMessage):
    """Message whose tool calls are dicts, which can be used in ``messages`` unchanged."""

    tool_calls: Optional[list[dict[str, Any]]] = None  # type: ignore[assignment]


class ToolChoice(Choice):
    message: ToolMessage


class ToolChatCompletion(ChatCompletion):
    choices: list[ToolChoice]  # type: ignore[assignment]


def chat_reply(
    model: str, choices: list[dict[str, Any]], outputs: Sequence[Generation]
) -> ChatCompletion:
    """The chat completion of ``outputs``; ``choices`` hold their messages."""
    return read_chat_completion(_payload("chat.completion", model, choices, outputs))


def text_reply(
    model: str, choices: list[dict[str, Any]], outputs: Sequence[Generation]
) -> Completion:
    """The text completion of ``outputs``; ``choices`` hold their texts."""
    return completion_of(_payload("text_completion", model, choices, outputs))


def read_chat_completion(payload: dict[str, Any]) -> ChatCompletion:
    """The chat completion of a JSON ``payload``; tool calls in it stay plain dicts."""
    if not any(choice["message"].get("tool_calls") for choice in payload["choices"]):
        return chat_completion_of(payload)
    completion = ToolChatCompletion.model_construct(**payload)
    for choice, raw_choice in zip(completion.choices, payload["choices"]):
        choice.message.tool_calls = raw_choice["message"].get("tool_calls")
    return completion


def _payload(
    kind: str, model: str, choices: list[dict[str, Any]], outputs: Sequence[Generation]
) -> dict[str, Any]:
    sampled = sum(len(output.tokens) for output in outputs)
    return completion_payload(kind, model, choices, len(outputs[0].prompt_ids), sampled)

"""The openai package's chat completion with tool calls as plain dicts.

A module of its own, imported when a model calls a tool: the openai package takes a second.
"""

from __future__ import annotations

from typing import Any, Optional

from openai.types.chat import ChatCompletion, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice

# Only fields that serialise as what they hold: the package's own would warn at every dict.


class ToolMessage(ChatCompletionMessage):
    """A message whose calls can go back into ``messages`` as they are."""

    tool_calls: Optional[list[dict[str, Any]]] = None  # type: ignore[assignment]


class ToolChoice(Choice):
    message: ToolMessage


class ToolChatCompletion(ChatCompletion):
    choices: list[ToolChoice]  # type: ignore[assignment]


def tool_completion_of(payload: dict[str, Any]) -> ChatCompletion:
    """As ``chat_completion_of``, with the very dicts of the payload as tool calls."""
    completion = ToolChatCompletion.model_construct(**payload)
    for choice, given in zip(completion.choices, payload["choices"]):
        choice.message.tool_calls = given["message"].get("tool_calls")
    return completion

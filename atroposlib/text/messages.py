"""Turns of a conversation, with the calls of tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def turns(message: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Label and content of a message, and of each of its tool calls."""
    content, calls = message.get("content"), message.get("tool_calls")
    if content or not calls:
        yield str(message.get("role", "")), content
    for call in calls if isinstance(calls, list) else ():
        match call:
            case {"function": {"name": name, "arguments": arguments}}:
                yield "tool call", f"{name}({arguments})"
            case _:
                yield "tool call", call

"""Parser of tool calls: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.

The text between the tags is JSON, or becomes JSON with every ``'`` replaced by ``"``: models
write calls as Python prints a dict, and environments of the original score them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from atroposlib.text.parts import answer_of
from atroposlib.text.tool_calls import json_object, tagged_calls

ERROR_NAME = "-ERROR-"
DEFAULT_TAGS = ("tool_call",)


def extract_tool_call(text: str, preferred_tags: Sequence[str] | None = None) -> str | None:
    """Content of the first of ``preferred_tags`` that has JSON, after the reasoning; else None."""
    answer = answer_of(text)
    for tag in preferred_tags or DEFAULT_TAGS:
        call = next((call for call in tagged_calls(answer, tag) if call.closed), None)
        if call is not None:
            return call.inner.strip()
    return None


def parse_tool_call(
    response: str,
    available_tools: Iterable[Mapping[str, Any]] | None = None,
    preferred_tags: Sequence[str] | None = None,
) -> tuple[str, dict[str, Any], bool]:
    """Name, arguments and whether the call is invalid.

    A missing or unreadable call is ``("-ERROR-", {}, True)``, a call of a tool that is not
    among ``available_tools`` (``{"name"}`` or ``{"function": {"name"}}``) is
    ``("-ERROR-", arguments, True)``.
    """
    text = extract_tool_call(response, preferred_tags)
    call = None if text is None else json_object(text) or json_object(text.replace("'", '"'))
    if call is None or not isinstance(call.get("name"), str):
        return ERROR_NAME, {}, True
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):  # some templates write the arguments as JSON in JSON
        arguments = json_object(arguments)
    if not isinstance(arguments, dict):
        return ERROR_NAME, {}, True
    if available_tools is not None and call["name"] not in map(_tool_name, available_tools):
        return ERROR_NAME, arguments, True
    return call["name"], arguments, False


def _tool_name(tool: Mapping[str, Any]) -> Any:
    return tool["name"] if "name" in tool else tool.get("function", {}).get("name")

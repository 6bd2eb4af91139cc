"""Protocol of tool-call parsers, and what the formats share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from atroposlib.text.parts import split
from atroposlib.text.tool_calls import MalformedCall, json_text, read_json_value

Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class FoundCall:
    """A call of a tool. Example: name "add", arguments '{"a": 1, "b": 2}'."""

    name: str
    arguments: str  # a JSON object, as text


@dataclass(frozen=True)
class Parsed:
    """Content and calls (at least 1) of a model's raw text."""

    content: str
    calls: list[FoundCall]


class ToolParser(Protocol):
    """A format of tool calls. Pure: its input is the text and the tools."""

    #: Parts of the special tokens that belong to a call, not to the end of a turn.
    markers: ClassVar[tuple[str, ...]]
    #: Whether calls of earlier turns stay calls for the chat template, instead of text.
    native: ClassVar[bool]

    def parse(self, raw: str, tools: Tools) -> Parsed | None:
        """The calls in ``raw``; None without a call, or with a malformed call.

        Calls inside the reasoning do not count; the reasoning is a part of the content.
        """

    def write(self, calls: Sequence[FoundCall]) -> str:
        """Text of the calls in this format, from which ``parse`` returns the same calls."""


class AnswerParser:
    """Base of the formats: reads calls from the text after the reasoning.

    Text with a malformed call has none.
    """

    native: ClassVar[bool] = False

    def parse(self, raw: str, tools: Tools) -> Parsed | None:
        answer = split(raw).answer
        if answer is None:
            return None
        try:
            content, calls = self.read(answer, tools)
        except MalformedCall:
            return None
        return Parsed(raw.removesuffix(answer) + content, calls) if calls else None

    def read(self, text: str, tools: Tools) -> tuple[str, list[FoundCall]]:
        """Content and calls of the text after the reasoning. Raises MalformedCall."""
        raise NotImplementedError


def call_of(
    value: Any, arguments_keys: tuple[str, ...] = ("arguments", "parameters")
) -> FoundCall:
    """The call of a decoded ``{"name": ..., "arguments": {...}}``. Raises MalformedCall.

    Arguments may be missing, or an object as JSON text.
    """
    if not isinstance(value, Mapping):
        raise MalformedCall("a call is an object")
    name = value.get("name")
    if not isinstance(name, str) or not name or not name.isprintable():
        raise MalformedCall("a call needs a name")
    arguments = next((value[key] for key in arguments_keys if key in value), None)
    if isinstance(arguments, str):
        arguments, _ = read_json_value(arguments, 0)
    if not isinstance(arguments, Mapping) and arguments is not None:
        raise MalformedCall("arguments are an object")
    return FoundCall(name, json_text(arguments or {}))


def arguments_value(call: FoundCall) -> Any:
    """The decoded arguments; their text if it is not JSON."""
    try:
        return json.loads(call.arguments)
    except ValueError:
        return call.arguments


def schema_of(name: str, tools: Tools) -> Mapping[str, Any] | None:
    """The JSON schema of the parameters of the tool ``name``; None without this tool."""
    for tool in tools:
        function = tool.get("function") or tool
        if function.get("name") == name:
            schema = function.get("parameters")
            return schema if isinstance(schema, Mapping) else {}
    return None

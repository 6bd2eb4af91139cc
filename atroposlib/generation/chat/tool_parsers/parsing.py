"""Protocol of tool-call parsers, and reading of the JSON in most formats."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol

Tools = Sequence[Mapping[str, Any]]

_SPACE = re.compile(r"\s*")


@dataclass(frozen=True)
class FoundCall:
    """One call of a tool. Example: name "add", arguments '{"a": 1, "b": 2}'."""

    name: str
    arguments: str  # a JSON object, as text


@dataclass(frozen=True)
class Parsed:
    """Content and calls (at least one) of a model's raw text."""

    content: str
    calls: list[FoundCall]


class MalformedCall(ValueError):
    """The text is not a well-formed call, so that all of it stays text."""


class ToolParser(Protocol):
    """One format of tool calls. Pure: its input is the text and the tools."""

    #: Parts of the special tokens that belong to a call, not to the end of a turn.
    markers: ClassVar[tuple[str, ...]]

    def parse(self, raw: str, tools: Tools) -> Parsed | None:
        """The calls in ``raw``; None without a call, or with a malformed one."""

    def write(self, calls: Sequence[FoundCall]) -> str:
        """Text of the calls in this format, from which ``parse`` returns the same calls."""


def _reject_constant(name: str) -> NoReturn:
    raise MalformedCall(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)


def skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def read_json(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that starts at ``at``, and its end. Raises MalformedCall.

    It is decoded up to its own end and not up to a closing tag, which an argument may contain.
    """
    try:
        return _DECODER.raw_decode(text, skip_space(text, at))
    except (
        ValueError,
        RecursionError,
    ) as cause:  # RecursionError: thousands of nested brackets
        raise MalformedCall("malformed JSON") from cause


def json_text(value: Any) -> str:
    """JSON without escapes, except of characters that UTF-8 cannot encode."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, from an incomplete escape
        return json.dumps(value)
    return text


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
        arguments, end = read_json(arguments, 0)
    if not isinstance(arguments, Mapping) and arguments is not None:
        raise MalformedCall("arguments are an object")
    return FoundCall(name, json_text(arguments or {}))


def arguments_value(call: FoundCall) -> Any:
    """The decoded arguments; their text if it is not JSON."""
    try:
        return json.loads(call.arguments)
    except ValueError:
        return call.arguments

"""The seam of tool-call formats, and the JSON that most of them are made of."""

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
    """What a model's raw text holds: words first, then calls (at least one)."""

    content: str
    calls: list[FoundCall]


class MalformedCall(ValueError):
    """The text is not a well-formed call; all of it is then plain text."""


class ToolParser(Protocol):
    """One format of tool calls. Pure: it sees text and the tools on offer, nothing else."""

    #: Parts of the special tokens that belong to a call, not to the end of a turn.
    markers: ClassVar[tuple[str, ...]]

    def parse(self, raw: str, tools: Tools) -> Parsed | None:
        """The calls in ``raw``; None when there is none, or one that is malformed."""

    def write(self, calls: Sequence[FoundCall]) -> str:
        """The text a model of this format would write: ``parse`` finds the same calls."""


def _reject_constant(name: str) -> NoReturn:
    raise MalformedCall(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)


def skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def read_json(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that starts at ``at`` and where it ends.

    Reading the value itself, rather than up to a closing tag, lets an argument hold the tag.

    Raises:
        NotACall: no well-formed value is there.
    """
    try:
        return _DECODER.raw_decode(text, skip_space(text, at))
    except (ValueError, RecursionError) as cause:  # a model may nest ten thousand brackets
        raise MalformedCall("malformed JSON") from cause


def json_text(value: Any) -> str:
    """JSON in the characters a model writes; escaped only where UTF-8 has no bytes for it."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, from an escape the model cut
        return json.dumps(value)
    return text


def call_of(
    value: Any, arguments_keys: tuple[str, ...] = ("arguments", "parameters")
) -> FoundCall:
    """The call that ``{"name": ..., "arguments": {...}}`` describes.

    Arguments may be left out, or be an object written as a string.

    Raises:
        NotACall: it describes none.
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
    """The arguments as a value; text that is no JSON stays text."""
    try:
        return json.loads(call.arguments)
    except ValueError:
        return call.arguments

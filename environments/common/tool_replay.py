"""Replay of recorded tool conversations: turns, expected calls, scores. Pure.

ShareGPT turns --turns_of--> [Turn(given, expected)] ; the model's calls --turn_score--> 0..1
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from atroposlib.errors import DatasetUnavailable
from atroposlib.text.parts import answer_of
from atroposlib.text.tool_calls import tagged_calls

_RESPONSE = re.compile(r"<tool_response>(.*?)</tool_response>", re.DOTALL)


@dataclass(frozen=True)
class ToolCall:
    """A tool call. ``arguments`` None: not a JSON object; equal to no expected call."""

    name: str
    arguments: dict[str, Any] | None
    call_id: str = field(default="", compare=False)


@dataclass(frozen=True)
class Turn:
    """A turn of the model: the messages before it, and the expected calls.

    Example: Turn([("user", "Weather in Rome?")], [Call("weather", {"city": "Rome"})])
    """

    given: list[tuple[str, str]]  # (role, content): user questions or tool responses
    expected: list[ToolCall]  # empty: the model should answer without a call


class UnreadableConversation(DatasetUnavailable):
    """A recorded conversation cannot be replayed."""


def turns_of(conversation: Sequence[Mapping[str, str]]) -> list[Turn]:
    """The model's turns, up to the last with a call; only the first where there is none.

    Raises UnreadableConversation: a role or call is invalid, or there is no question before
    the first turn.
    """
    turns: list[Turn] = []
    pairs: list[tuple[str, str]] = []
    for message in conversation:
        role, text = message["from"], message["value"]
        if role == "system":
            continue
        if role in ("human", "user"):
            pairs.append(("user", text))
        elif role == "tool":
            pairs += [("tool", part.strip()) for part in _RESPONSE.findall(text) or [text]]
        elif role in ("gpt", "assistant"):
            turns.append(Turn(pairs, recorded_calls(text)))
            pairs = []
        else:
            raise UnreadableConversation(f"a turn is from {role!r}")
    last = max((i for i, turn in enumerate(turns) if turn.expected), default=0)
    if not turns or not turns[0].given:
        raise UnreadableConversation("nobody asks anything before the model speaks")
    return turns[: last + 1]


def recorded_calls(text: str) -> list[ToolCall]:
    """Calls in a recorded answer, except calls in its reasoning."""
    return [
        _recorded_call(call.inner) for call in tagged_calls(answer_of(text)) if call.closed
    ]


def _recorded_call(text: str) -> ToolCall:
    # Some recordings hold Python literals; literal_eval parses these without execution.
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text.strip())
        except (ValueError, SyntaxError):
            continue
        if isinstance(value, dict) and isinstance(value.get("arguments"), dict):
            return ToolCall(str(value.get("name")), value["arguments"])
    raise UnreadableConversation(f"a recorded call is not readable: {text.strip():.80}")


def calls_in(text: str) -> list[ToolCall]:
    """Calls in the model's text, JSON only; an unreadable call equals no expected call."""
    return [_written_call(call.value) for call in tagged_calls(answer_of(text)) if call.closed]


def _written_call(value: Any) -> ToolCall:
    if not isinstance(value, dict):
        return ToolCall("", None)
    arguments = value.get("arguments")
    return ToolCall(str(value.get("name")), arguments if isinstance(arguments, dict) else None)


def made_calls(message: Any) -> list[ToolCall]:
    """Calls of an assistant message of the openai package."""
    calls = []
    for entry in getattr(message, "tool_calls", None) or []:
        entry = entry if isinstance(entry, dict) else entry.model_dump()
        function = entry["function"]
        try:
            arguments = json.loads(function["arguments"])
        except (TypeError, ValueError):
            arguments = None
        arguments = arguments if isinstance(arguments, dict) else None
        calls.append(ToolCall(function["name"], arguments, entry["id"]))
    return calls


def same(a: Any, b: Any) -> bool:
    """Equal as JSON values: 1 equals 1.0 but not true, and keys have no order."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def pair_calls(
    expected: Sequence[ToolCall], made: Sequence[ToolCall]
) -> list[ToolCall | None]:
    """The equal made call of each expected call; each made call is used once."""
    left = [call for call in made if call.arguments is not None]
    pairs: list[ToolCall | None] = []
    for call in expected:
        matches = (i for i, candidate in enumerate(left) if _equal(call, candidate))
        match = next(matches, None)
        pairs.append(None if match is None else left.pop(match))
    return pairs


def _equal(a: ToolCall, b: ToolCall) -> bool:
    return a.name == b.name and same(a.arguments, b.arguments)


def turn_score(expected: Sequence[ToolCall], made: Sequence[ToolCall]) -> float:
    """Number of right calls divided by the larger of the numbers of expected and made calls.

    No call expected: 1.0 for none made, else 0.0.
    """
    if not expected:
        return 0.0 if made else 1.0
    right = sum(call is not None for call in pair_calls(expected, made))
    return right / max(len(expected), len(made))


def conversation_reward(
    turn_scores: Sequence[float], num_turns: int, bonus: float, penalty: float
) -> float:
    """Dense share of right turns, plus ``bonus`` for all, minus ``penalty`` for a mistake.

    The replay ends at the first turn that is not all right, so turns not reached count 0:
    [1.0, 0.5] of 4 turns with penalty 0.2 is 1.5 / 4 - 0.2 = 0.175.
    """
    dense = sum(turn_scores) / num_turns
    if len(turn_scores) == num_turns and all(score == 1.0 for score in turn_scores):
        return dense + bonus
    return dense - penalty


def openai_tools(tools: str | Sequence[Any]) -> list[dict[str, Any]]:
    """Tool schemas in OpenAI's format, from JSON text or a list."""
    listed = json.loads(tools) if isinstance(tools, str) else list(tools)
    return [
        tool if "function" in tool else {"type": "function", "function": tool}
        for tool in listed
    ]


def tools_as_text(tools: Sequence[Mapping[str, Any]]) -> str:
    """Instructions for models whose chat template does not show tools."""
    lines = "\n".join(json.dumps(tool) for tool in tools)
    return (
        "You can call these functions:\n<tools>\n" + lines + "\n</tools>\n"
        "To call one, write a JSON object with its name and its arguments inside tags, one "
        'pair of tags for each call:\n<tool_call>\n{"name": "...", "arguments": {...}}\n'
        "</tool_call>"
    )

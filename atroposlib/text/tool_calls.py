r"""JSON of tool calls in text: strict reading, and the calls between tags.

    '... <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
        --tagged_calls-->  [{"name": "add", "arguments": {"a": 1}}]

The only reader of tagged calls. Callers pass no text inside of reasoning.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

CALL_TAG = "tool_call"
_SPACE = re.compile(r"\s*")


class MalformedCall(ValueError):
    """The text is not a well-formed call."""


@dataclass(frozen=True)
class TaggedCall:
    """A call between tags, ``text[start:end]``."""

    start: int
    end: int
    inner: str  # text between the tags
    value: Any  # the decoded JSON; None: it is malformed
    closed: bool  # whether the closing tag follows


def tagged_calls(text: str, tag: str = CALL_TAG) -> Iterator[TaggedCall]:
    """Calls between ``<tag>`` and ``</tag>``; a tag that is only mentioned begins no call.

    JSON is read up to its own end and not up to a closing tag, which an argument may contain.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    at = text.find(opening)
    while at >= 0:
        call = _call_at(text, at, opening, closing)
        if call is not None:
            yield call
        at = text.find(opening, at + len(opening) if call is None else call.end)


def _call_at(text: str, at: int, opening: str, closing: str) -> TaggedCall | None:
    first = skip_space(text, at + len(opening))
    close = text.find(closing, first)
    value, end = None, close if close >= 0 else len(text)
    is_json = text.startswith(("{", "["), first)
    if is_json:
        with suppress(MalformedCall):
            value, end = read_json_value(text, first)
    again = text.find(opening, first)
    if not is_json and (close < 0 or 0 <= again < close):
        return None
    after = skip_space(text, end)
    closed = text.startswith(closing, after)
    whole = after + len(closing) if closed else end
    return TaggedCall(at, whole, text[first:end], value, closed)


def skip_space(text: str, at: int) -> int:
    """Position of the first character from ``at`` on that is no white space."""
    match = _SPACE.match(text, at)
    return match.end() if match else at


def read_json_value(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that starts at ``at``, and its end. Raises MalformedCall.

    NaN and numbers beyond the range of a float, which cannot be written as JSON, are malformed.
    """
    try:
        return _DECODER.raw_decode(text, skip_space(text, at))
    except (ValueError, RecursionError) as cause:  # thousands of nested brackets
        raise MalformedCall("malformed JSON") from cause


def json_object(text: str) -> dict[str, Any] | None:
    """``text`` as a JSON object; None if it is none, or if more follows."""
    try:
        value, end = read_json_value(text, 0)
    except MalformedCall:
        return None
    whole = skip_space(text, end) == len(text)
    return value if whole and isinstance(value, dict) else None


def json_text(value: Any) -> str:
    """JSON without escapes, except of characters that UTF-8 cannot encode."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, from an incomplete escape
        return json.dumps(value)
    return text


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise MalformedCall(f"{number} is beyond the range of a float")
    return value


def _reject_constant(name: str) -> NoReturn:
    raise MalformedCall(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_reject_constant, parse_float=_finite)

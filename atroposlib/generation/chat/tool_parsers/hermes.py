"""Hermes and Qwen: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from atroposlib.generation.chat.tool_parsers.parsing import (
    FoundCall,
    MalformedCall,
    Parsed,
    Tools,
    arguments_value,
    call_of,
    json_text,
    read_json,
    skip_space,
)

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser:
    """Text before the first tag is content. The last closing tag may be missing."""

    markers: ClassVar[tuple[str, ...]] = (OPEN, CLOSE)

    def parse(self, raw: str, tools: Tools) -> Parsed | None:
        start = at = raw.find(OPEN)
        if start < 0:
            return None
        calls = []
        try:
            while at >= 0:
                value, end = read_json(raw, at + len(OPEN))
                calls.append(call_of(value))
                end = skip_space(raw, end)
                if not raw.startswith(CLOSE, end) and end < len(raw):
                    return None
                at = raw.find(OPEN, end)
        except MalformedCall:
            return None
        return Parsed(raw[:start], calls)

    def write(self, calls: Sequence[FoundCall]) -> str:
        return "\n".join(
            OPEN + json_text({"name": call.name, "arguments": arguments_value(call)}) + CLOSE
            for call in calls
        )

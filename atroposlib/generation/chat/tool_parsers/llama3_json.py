"""Llama 3.x: only ``{"name": ..., "parameters": {...}}``, repeated after ``;``."""

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

TAG = "<|python_tag|>"


class Llama3JsonParser:
    """Text before the calls is allowed only if ``<|python_tag|>`` follows it."""

    markers: ClassVar[tuple[str, ...]] = (TAG,)

    def parse(self, raw: str, tools: Tools) -> Parsed | None:
        content, tag, rest = raw.partition(TAG)
        if not tag:
            content, rest = "", raw
        calls, at = [], skip_space(rest, 0)
        try:
            while at < len(rest):
                value, end = read_json(rest, at)
                calls.append(call_of(value, ("parameters", "arguments")))
                at = skip_space(rest, end)
                if at < len(rest):
                    if rest[at] not in ";,":
                        return None
                    at = skip_space(rest, at + 1)
        except MalformedCall:
            return None
        return Parsed(content, calls) if calls else None

    def write(self, calls: Sequence[FoundCall]) -> str:
        return "; ".join(
            json_text({"name": call.name, "parameters": arguments_value(call)})
            for call in calls
        )

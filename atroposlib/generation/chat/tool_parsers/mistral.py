"""Mistral: ``[TOOL_CALLS] [{"name": ..., "arguments": {...}}]``, or ``[TOOL_CALLS]name{...}``."""

from __future__ import annotations

import re
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

TAG = "[TOOL_CALLS]"
_NAMED = re.compile(r"\s*([^\s\[{]+)\s*(?:\[CALL_ID\]\s*[^\s\[{]+\s*)?(?:\[ARGS\])?")


class MistralParser:
    """Reads the list format of older models and the name format of newer ones."""

    markers: ClassVar[tuple[str, ...]] = (TAG, "[ARGS]", "[CALL_ID]")

    def parse(self, raw: str, tools: Tools) -> Parsed | None:
        content, tag, rest = raw.partition(TAG)
        if not tag:
            return None
        try:
            calls = _read_list(rest) if rest.lstrip().startswith("[") else _read_named(rest)
        except MalformedCall:
            return None
        return Parsed(content, calls) if calls else None

    def write(self, calls: Sequence[FoundCall]) -> str:
        listed = [{"name": call.name, "arguments": arguments_value(call)} for call in calls]
        return TAG + json_text(listed) if calls else ""


def _read_list(text: str) -> list[FoundCall]:
    values, _ = read_json(text, 0)
    return [call_of(value) for value in values]


def _read_named(text: str) -> list[FoundCall]:
    calls, at = [], 0
    while at < len(text):
        named = _NAMED.match(text, at)
        if named is None:
            raise MalformedCall("a call needs a name")
        arguments, end = read_json(text, named.end())
        calls.append(call_of({"name": named[1], "arguments": arguments}))
        at = skip_space(text, end)
        if at < len(text):
            if not text.startswith(TAG, at):
                raise MalformedCall("text after a call")
            at += len(TAG)
    return calls

"""Formats with calls in JSON: Hermes and Qwen, Llama 3.x, Mistral."""

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


class JsonParser:
    """Base of the formats: text with a malformed call has none."""

    def parse(self, raw: str, tools: Tools) -> Parsed | None:
        try:
            content, calls = self.read(raw)
        except MalformedCall:
            return None
        return Parsed(content, calls) if calls else None

    def read(self, raw: str) -> tuple[str, list[FoundCall]]:
        """Content and calls of a model's raw text. Raises MalformedCall."""
        raise NotImplementedError


class HermesParser(JsonParser):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, repeated.

    Text before the first tag is content. The last closing tag may be missing.
    """

    OPEN, CLOSE = "<tool_call>", "</tool_call>"
    markers: ClassVar[tuple[str, ...]] = (OPEN, CLOSE)

    def read(self, raw: str) -> tuple[str, list[FoundCall]]:
        start = at = raw.find(self.OPEN)
        calls = []
        while at >= 0:
            value, end = read_json(raw, at + len(self.OPEN))
            calls.append(call_of(value))
            end = skip_space(raw, end)
            if not raw.startswith(self.CLOSE, end) and end < len(raw):
                raise MalformedCall("text after a call")
            at = raw.find(self.OPEN, end)
        return raw[: max(start, 0)], calls

    def write(self, calls: Sequence[FoundCall]) -> str:
        return "\n".join(
            self.OPEN + json_text(_named(call, "arguments")) + self.CLOSE for call in calls
        )


class Llama3JsonParser(JsonParser):
    """Only ``{"name": ..., "parameters": {...}}``, repeated after ``;``.

    Text before the calls is allowed only if ``<|python_tag|>`` follows it.
    """

    TAG = "<|python_tag|>"
    markers: ClassVar[tuple[str, ...]] = (TAG,)

    def read(self, raw: str) -> tuple[str, list[FoundCall]]:
        content, tag, rest = raw.partition(self.TAG)
        if not tag:
            content, rest = "", raw
        calls, at = [], skip_space(rest, 0)
        while at < len(rest):
            value, end = read_json(rest, at)
            calls.append(call_of(value, ("parameters", "arguments")))
            at = skip_space(rest, end)
            if at < len(rest):
                if rest[at] not in ";,":
                    raise MalformedCall("text after a call")
                at = skip_space(rest, at + 1)
        return content, calls

    def write(self, calls: Sequence[FoundCall]) -> str:
        return "; ".join(json_text(_named(call, "parameters")) for call in calls)


class MistralParser(JsonParser):
    """``[TOOL_CALLS] [{"name": ..., "arguments": {...}}]``, or ``[TOOL_CALLS]name{...}``.

    The list is the format of older models, the name that of newer ones.
    """

    TAG = "[TOOL_CALLS]"
    NAME = re.compile(r"\s*([^\s\[{]+)\s*(?:\[CALL_ID\]\s*[^\s\[{]+\s*)?(?:\[ARGS\])?")
    markers: ClassVar[tuple[str, ...]] = (TAG, "[ARGS]", "[CALL_ID]")

    def read(self, raw: str) -> tuple[str, list[FoundCall]]:
        content, _, rest = raw.partition(self.TAG)
        if rest.lstrip().startswith("["):
            values, _ = read_json(rest, 0)
            return content, [call_of(value) for value in values]
        calls, at = [], 0
        while at < len(rest):
            named = self.NAME.match(rest, at)
            if named is None:
                raise MalformedCall("a call needs a name")
            arguments, end = read_json(rest, named.end())
            calls.append(call_of({"name": named[1], "arguments": arguments}))
            at = skip_space(rest, end)
            if at < len(rest):
                if not rest.startswith(self.TAG, at):
                    raise MalformedCall("text after a call")
                at += len(self.TAG)
        return content, calls

    def write(self, calls: Sequence[FoundCall]) -> str:
        listed = [_named(call, "arguments") for call in calls]
        return self.TAG + json_text(listed) if calls else ""


def _named(call: FoundCall, key: str) -> dict[str, object]:
    return {"name": call.name, key: arguments_value(call)}

"""Formats with calls in JSON: Hermes and Qwen, Llama 3.x, Mistral."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from atroposlib.generation.chat.tool_parsers.parsing import (
    AnswerParser,
    FoundCall,
    Tools,
    arguments_value,
    call_of,
    schema_of,
)
from atroposlib.text.tool_calls import (
    MalformedCall,
    json_text,
    read_json_value,
    skip_space,
    tagged_calls,
)


class HermesParser(AnswerParser):
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, repeated.

    Text before the first tag is content. The last closing tag may be missing.
    """

    OPEN, CLOSE = "<tool_call>", "</tool_call>"
    markers: ClassVar[tuple[str, ...]] = (OPEN, CLOSE)

    def read(self, text: str, tools: Tools) -> tuple[str, list[FoundCall]]:
        tagged = list(tagged_calls(text))
        if any(not call.closed and text[call.end :].strip() for call in tagged):
            raise MalformedCall("text after a call")
        calls = [call_of(call.value) for call in tagged]
        return text[: tagged[0].start if tagged else 0], calls

    def write(self, calls: Sequence[FoundCall]) -> str:
        return "\n".join(
            self.OPEN + json_text(_with_name(call, "arguments")) + self.CLOSE for call in calls
        )


class Llama3JsonParser(AnswerParser):
    """Only ``{"name": ..., "parameters": {...}}``, repeated after ``;``.

    Text before the calls is allowed only if ``<|python_tag|>`` follows it. Without that tag,
    JSON without parameters, or with a name that is no tool, is an answer and not a call.
    """

    KEYS = ("parameters", "arguments")

    TAG = "<|python_tag|>"
    markers: ClassVar[tuple[str, ...]] = (TAG,)

    def read(self, text: str, tools: Tools) -> tuple[str, list[FoundCall]]:
        content, tag, rest = text.partition(self.TAG)
        if not tag:
            content, rest = "", text
        calls, at = [], skip_space(rest, 0)
        while at < len(rest):
            value, end = read_json_value(rest, at)
            call = call_of(value, self.KEYS)
            if not tag and tools and schema_of(call.name, tools) is None:
                raise MalformedCall(f"{call.name} is no tool")
            if not tag and not any(key in value for key in self.KEYS):
                raise MalformedCall("a call has parameters")
            calls.append(call)
            at = skip_space(rest, end)
            if at < len(rest):
                if rest[at] not in ";,":
                    raise MalformedCall("text after a call")
                at = skip_space(rest, at + 1)
        return content, calls

    def write(self, calls: Sequence[FoundCall]) -> str:
        return "; ".join(json_text(_with_name(call, "parameters")) for call in calls)


class MistralParser(AnswerParser):
    """``[TOOL_CALLS] [{"name": ..., "arguments": {...}}]``, or ``[TOOL_CALLS]name{...}``.

    The list is the format of older models, the name is the format of newer models.
    """

    TAG = "[TOOL_CALLS]"
    NAME = re.compile(r"\s*([^\s\[{]+)\s*(?:\[CALL_ID\]\s*[^\s\[{]+\s*)?(?:\[ARGS\])?")
    markers: ClassVar[tuple[str, ...]] = (TAG, "[ARGS]", "[CALL_ID]")

    def read(self, text: str, tools: Tools) -> tuple[str, list[FoundCall]]:
        content, _, rest = text.partition(self.TAG)
        if rest.lstrip().startswith("["):
            values, _ = read_json_value(rest, 0)
            return content, [call_of(value) for value in values]
        calls, at = [], 0
        while at < len(rest):
            named = self.NAME.match(rest, at)
            if named is None:
                raise MalformedCall("a call needs a name")
            arguments, end = read_json_value(rest, named.end())
            calls.append(call_of({"name": named[1], "arguments": arguments}))
            at = skip_space(rest, end)
            if at < len(rest):
                if not rest.startswith(self.TAG, at):
                    raise MalformedCall("text after a call")
                at += len(self.TAG)
        return content, calls

    def write(self, calls: Sequence[FoundCall]) -> str:
        listed = [_with_name(call, "arguments") for call in calls]
        return self.TAG + json_text(listed) if calls else ""


def _with_name(call: FoundCall, key: str) -> dict[str, object]:
    return {"name": call.name, key: arguments_value(call)}

"""Qwen3-Coder: ``<tool_call><function=name><parameter=key>value</parameter></function>...``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from atroposlib.generation.chat.tool_parsers.parsing import (
    AnswerParser,
    FoundCall,
    Tools,
    arguments_value,
    schema_of,
)
from atroposlib.generation.chat.tool_parsers.written_values import written_value
from atroposlib.text.tool_calls import MalformedCall, json_text

_FUNCTION = re.compile(r"<function=([^>\s]+)>\s*")
_PARAMETER = re.compile(
    r"<parameter=([^>\s]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|(?=</function>))\s*",
    re.DOTALL,
)
_END = re.compile(r"\s*(?:</function>|\Z)")


class Qwen3CoderParser(AnswerParser):
    """Values have the type that the tool's schema allows; without a schema they are text.

    Raises MalformedCall for text inside of a call, or for a call that is cut off. A function
    without parameters and without its end is mentioned, not called.
    """

    markers: ClassVar[tuple[str, ...]] = ("tool_call>", "<function=", "</function>")

    def read(self, text: str, tools: Tools) -> tuple[str, list[FoundCall]]:
        calls: list[FoundCall] = []
        start, at = 0, 0
        while function := _FUNCTION.search(text, at):
            at = function.end()
            written: dict[str, str] = {}
            while parameter := _PARAMETER.match(text, at):
                written[parameter[1]] = parameter[2]
                at = parameter.end()
            end = _END.match(text, at)
            closed = end is not None and bool(end.group().strip())
            if not closed and not written and not text.startswith("<parameter=", at):
                continue
            if end is None:
                raise MalformedCall(f"a call of {function[1]} is cut off or has other text")
            if not calls:
                tag = text.rfind("<tool_call>", 0, function.start())
                between = text[tag + len("<tool_call>") : function.start()]
                start = tag if tag >= 0 and not between.strip() else function.start()
            calls.append(FoundCall(function[1], _arguments(function[1], written, tools)))
            at = end.end()
        return text[:start], calls

    def write(self, calls: Sequence[FoundCall]) -> str:
        return "\n".join(_call_text(call) for call in calls)


def _arguments(name: str, written: Mapping[str, str], tools: Tools) -> str:
    schema = schema_of(name, tools) or {}
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    return json_text(
        {key: written_value(text, known.get(key), schema) for key, text in written.items()}
    )


def _call_text(call: FoundCall) -> str:
    arguments = arguments_value(call)
    lines = [
        f"<parameter={key}>\n{value if isinstance(value, str) else json_text(value)}\n"
        "</parameter>\n"
        for key, value in (arguments.items() if isinstance(arguments, Mapping) else ())
    ]
    return f"<tool_call>\n<function={call.name}>\n{''.join(lines)}</function>\n</tool_call>"

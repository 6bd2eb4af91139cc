"""Qwen3-Coder: ``<tool_call><function=name><parameter=key>value</parameter></function>...``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from atroposlib.generation.chat.tool_parsers.parsing import (
    FoundCall,
    Parsed,
    Tools,
    arguments_value,
    json_text,
)

_CALL = re.compile(r"<function=([^>\s]+)>\s*(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(
    r"<parameter=([^>\s]+)>\n?(.*?)\n?"
    r"(?:</parameter>|(?=<parameter=)|(?=</function>)|\Z)\s*",
    re.DOTALL,
)


class Qwen3CoderParser:
    """Values are text if the tool's schema has type string or no type, else JSON."""

    markers: ClassVar[tuple[str, ...]] = ("tool_call>", "<function=", "</function>")

    def parse(self, raw: str, tools: Tools) -> Parsed | None:
        found = list(_CALL.finditer(raw))
        if not found:
            return None
        start = raw.rfind("<tool_call>", 0, found[0].start() + 1)
        calls = [_call(match[1], match[2], tools) for match in found]
        return Parsed(raw[: start if start >= 0 else found[0].start()], calls)

    def write(self, calls: Sequence[FoundCall]) -> str:
        return "\n".join(_written(call) for call in calls)


def _call(name: str, body: str, tools: Tools) -> FoundCall:
    types = _parameter_types(name, tools)
    arguments = {
        match[1]: _value(match[2], types.get(match[1], "string"))
        for match in _PARAMETER.finditer(body)
    }
    return FoundCall(name, json_text(arguments))


def _value(text: str, kind: Any) -> Any:
    if kind == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _parameter_types(name: str, tools: Tools) -> dict[str, Any]:
    for tool in tools:
        function = tool.get("function") or tool
        if function.get("name") == name:
            properties = (function.get("parameters") or {}).get("properties") or {}
            return {
                key: schema.get("type")
                for key, schema in properties.items()
                if isinstance(schema, Mapping)
            }
    return {}


def _written(call: FoundCall) -> str:
    arguments = arguments_value(call)
    lines = [
        f"<parameter={key}>\n{value if isinstance(value, str) else json_text(value)}\n"
        "</parameter>\n"
        for key, value in (arguments.items() if isinstance(arguments, Mapping) else ())
    ]
    return f"<tool_call>\n<function={call.name}>\n{''.join(lines)}</function>\n</tool_call>"

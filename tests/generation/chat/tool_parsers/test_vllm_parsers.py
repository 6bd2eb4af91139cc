"""Parsers of an installed vLLM."""

from __future__ import annotations

import json
import sys
import types
from typing import Any

import pytest

from atroposlib.errors import ConfigError
from atroposlib.generation.chat.tool_call_translator import ToolCallTranslator
from atroposlib.generation.chat.tool_parsers import vllm_parsers

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def named(calls: Any) -> list[tuple[str, Any]]:
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]


def test_an_installed_vllm_adds_its_parsers(monkeypatch) -> None:
    """A stand-in for the package: its seam is one class and one method."""
    function = types.SimpleNamespace(name="add", arguments='{"a": 1}')
    found = types.SimpleNamespace(
        tools_called=True,
        content=None,
        tool_calls=[types.SimpleNamespace(function=function)],
    )

    class Parser:
        def __init__(self, tokenizer: Any) -> None: ...

        def extract_tool_calls(self, raw: str, request: Any) -> Any:
            if "call" in raw:
                return found
            return types.SimpleNamespace(tools_called=False)

    parsers: Any = types.ModuleType("vllm.tool_parsers")
    parsers.ToolParserManager = types.SimpleNamespace(
        get_tool_parser={"exotic": Parser}.__getitem__
    )
    protocol: Any = types.ModuleType("vllm.entrypoints.openai.protocol")
    protocol.ChatCompletionRequest = lambda **fields: fields
    for module in ("vllm", "vllm.entrypoints", "vllm.entrypoints.openai"):
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    monkeypatch.setitem(sys.modules, "vllm.tool_parsers", parsers)
    monkeypatch.setitem(sys.modules, "vllm.entrypoints.openai.protocol", protocol)
    monkeypatch.setattr("atroposlib.generation.chat.tool_parsers.VLLM_AVAILABLE", True)
    translator = ToolCallTranslator(None, "exotic")
    assert named(translator.parse_model_output("call!", "auto", [ADD])[1]) == [
        ("add", {"a": 1})
    ]
    assert translator.parse_model_output("text", "auto", [ADD]) == ("text", None, "stop")
    with pytest.raises(ConfigError, match="vLLM knows no parser"):
        vllm_parsers.VllmParser("unknown", None)

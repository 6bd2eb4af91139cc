"""Adapter of vLLM's tool-call parsers, for formats without a class here."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

from atroposlib.errors import ConfigError
from atroposlib.generation.chat.tool_parsers.json_formats import HermesParser
from atroposlib.generation.chat.tool_parsers.parsing import AnswerParser, FoundCall, Tools

#: Whether vLLM can be imported; the check does not import it.
VLLM_AVAILABLE = find_spec("vllm") is not None

# Their place differs between versions of vLLM; the first that exists is used.
_PARSER_MODULES = ("vllm.tool_parsers", "vllm.entrypoints.openai.tool_parsers")
_REQUEST_MODULES = (
    "vllm.entrypoints.openai.chat_completion.protocol",
    "vllm.entrypoints.openai.protocol",
)


class VllmParser(AnswerParser):
    """``ToolParserManager.get_tool_parser(name)`` of vLLM.

    It only reads, so that calls which were not sampled are written in the Hermes format.
    """

    markers: ClassVar[tuple[str, ...]] = ("tool", "TOOL", "python_tag")

    def __init__(self, name: str, tokenizer: Any) -> None:
        manager = _first_of(_PARSER_MODULES, "ToolParserManager")
        self._request = _first_of(_REQUEST_MODULES, "ChatCompletionRequest")
        try:
            self._parser = manager.get_tool_parser(name)(tokenizer)
        except KeyError as cause:
            raise ConfigError(f"tool_parser: vLLM knows no parser {name!r}") from cause

    def read(self, text: str, tools: Tools) -> tuple[str, list[FoundCall]]:
        request = self._request(
            messages=[], model="any", tools=[dict(tool) for tool in tools], tool_choice="auto"
        )
        extracted = self._parser.extract_tool_calls(text, request=request)
        if not extracted.tools_called:
            return text, []
        calls = [
            FoundCall(call.function.name, call.function.arguments)
            for call in extracted.tool_calls
        ]
        return extracted.content or "", calls

    def write(self, calls: Sequence[FoundCall]) -> str:
        return HermesParser().write(calls)


def _first_of(modules: Sequence[str], name: str) -> Any:
    for module in modules:
        try:
            return getattr(import_module(module), name)
        except ModuleNotFoundError:
            continue
    raise ConfigError(f"tool_parser: this vLLM has no {name} where it is known to be")

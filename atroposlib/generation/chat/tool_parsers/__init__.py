"""Formats of tool calls: a class and a line of TOOL_PARSERS per format.

    raw text  --parse-->  text before the calls, [FoundCall]  --write-->  raw text

A new format needs a class of the protocol :class:`ToolParser`.
"""

from __future__ import annotations

from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.generation.chat.tool_parsers.harmony import HarmonyParser
from atroposlib.generation.chat.tool_parsers.json_formats import (
    HermesParser,
    Llama3JsonParser,
    MistralParser,
)
from atroposlib.generation.chat.tool_parsers.parsing import ToolParser
from atroposlib.generation.chat.tool_parsers.qwen3_coder import Qwen3CoderParser
from atroposlib.generation.chat.tool_parsers.vllm_parsers import VLLM_AVAILABLE, VllmParser

__all__ = ["TOOL_PARSERS", "VLLM_AVAILABLE", "tool_parser_named"]

TOOL_PARSERS: dict[str, type[ToolParser]] = {
    "harmony": HarmonyParser,
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
    "mistral": MistralParser,
    "qwen3_coder": Qwen3CoderParser,
}


def tool_parser_named(name: str, tokenizer: Any = None) -> ToolParser:
    """The parser ``name`` of TOOL_PARSERS, else of vLLM if installed. Raises ConfigError.

    ``vllm:<name>`` selects the parser of vLLM also for a name of TOOL_PARSERS.
    """
    if name in TOOL_PARSERS:
        return TOOL_PARSERS[name]()
    if VLLM_AVAILABLE:
        return VllmParser(name.removeprefix("vllm:"), tokenizer)
    raise ConfigError(
        f"tool_parser: {name!r} is none of {', '.join(sorted(TOOL_PARSERS))}; "
        "vLLM, where it is installed, brings more"
    )

"""How models write tool calls: one file per format, one line here per format.

    raw text  --parse-->  text before the calls, [FoundCall]  --write-->  raw text

To add a format, write a file with a class that has what :class:`ToolParser` asks for.
"""

from __future__ import annotations

from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.generation.chat.tool_parsers.hermes import HermesParser
from atroposlib.generation.chat.tool_parsers.llama3_json import Llama3JsonParser
from atroposlib.generation.chat.tool_parsers.mistral import MistralParser
from atroposlib.generation.chat.tool_parsers.parsing import (
    FoundCall,
    Parsed,
    ToolParser,
)
from atroposlib.generation.chat.tool_parsers.qwen3_coder import Qwen3CoderParser
from atroposlib.generation.chat.tool_parsers.vllm_parsers import (
    VLLM_AVAILABLE,
    VllmParser,
)

__all__ = [
    "FoundCall",
    "Parsed",
    "TOOL_PARSERS",
    "ToolParser",
    "VLLM_AVAILABLE",
    "tool_parser_named",
]

TOOL_PARSERS: dict[str, type[ToolParser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3JsonParser,
    "mistral": MistralParser,
    "qwen3_coder": Qwen3CoderParser,
}


def tool_parser_named(name: str, tokenizer: Any = None) -> ToolParser:
    """The parser of this name: ours, else vLLM's where vLLM is installed.

    ``vllm:<name>`` asks for vLLM's even where there is one of ours.

    Raises:
        ConfigError: neither knows the name.
    """
    if name in TOOL_PARSERS:
        return TOOL_PARSERS[name]()
    if VLLM_AVAILABLE:
        return VllmParser(name.removeprefix("vllm:"), tokenizer)
    raise ConfigError(
        f"tool_parser: {name!r} is none of {', '.join(sorted(TOOL_PARSERS))}; "
        "vLLM, where it is installed, brings more"
    )

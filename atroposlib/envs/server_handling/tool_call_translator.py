"""The original's import path of :mod:`atroposlib.generation.chat.tool_call_translator`."""

from atroposlib.generation.chat.tool_call_translator import (
    VLLM_AVAILABLE,
    ToolCall,
    ToolCallTranslator,
)

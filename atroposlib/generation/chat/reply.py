"""Message of a sample: its tokens as content, reasoning and tool calls.

    tokens --text_of--> text with reasoning marks --message_of--> {"content", "tool_calls", ...}

The content of a reply whose prompt opened the reasoning starts with the opening mark, so that
its text alone has all parts. A stop string is cut off. The tokens of the sample stay as they
are, and :class:`WholeTexts` maps cut content back to the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.generation.chat.template import (
    Message,
    decode_after,
    text_of_ids,
)
from atroposlib.generation.chat.tool_call_translator import ToolCallTranslator
from atroposlib.text.parts import CHANNEL, has_marks, split


def sample_text(tokenizer: Any, before: Sequence[int], tokens: Sequence[int]) -> str:
    """Text of a sample without special tokens, except the marks of reasoning and channels."""
    whole = decode_after(tokenizer, before, tokens, skip_special=False)
    plain = decode_after(tokenizer, before, tokens, skip_special=True)
    if CHANNEL in whole:
        return whole
    if not has_marks(whole) or has_marks(plain):
        return plain
    kept = [token for token in tokens if not _is_dropped(tokenizer, token)]
    return decode_after(tokenizer, before, kept, skip_special=False)


def _is_dropped(tokenizer: Any, token: int) -> bool:
    text = text_of_ids(tokenizer, [token], skip_special=False)
    is_special = bool(text) and not text_of_ids(tokenizer, [token], skip_special=True)
    return is_special and not has_marks(text)


class WholeTexts:
    """Sampled texts, by their content cut at a stop string."""

    def __init__(self) -> None:
        self._whole_of: dict[str, str] = {}

    def keep(self, content: str, whole: str) -> None:
        """Record that ``content`` was cut from ``whole``, if they differ."""
        if content != whole:
            self._whole_of[content] = whole

    def with_stop_string(self, message: Message) -> Message:
        """An earlier reply with its stop string, so that its tokens are continued."""
        content = message.get("content")
        whole = self._whole_of.get(content) if isinstance(content, str) else None
        if whole is None or message.get("role") != "assistant" or message.get("tool_calls"):
            return message
        return {**message, "content": whole}


def message_of(
    text: str,
    cut: str,
    translator: ToolCallTranslator | None,
    tools: Sequence[Mapping[str, Any]] | None,
    tool_choice: Any,
) -> Message:
    """The assistant's message of a sampled ``text``, of which ``cut`` is for the reader.

    Channels of harmony are separated: content is the answer, ``reasoning_content`` the rest.
    """
    message: Message = {"role": "assistant", "content": cut}
    if translator is not None and tools:
        content, calls, _ = translator.parse_model_output(cut, tool_choice, tools, whole=text)
        message["content"] = content
        if calls is not None:
            message["tool_calls"] = calls
    if CHANNEL in cut:
        parts = split(cut)
        message["content"] = parts.final or (None if "tool_calls" in message else "")
        if parts.thoughts:
            message["reasoning_content"] = parts.reasoning
    return message

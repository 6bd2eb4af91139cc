"""Lossless translation between sampled text and tool calls of OpenAI messages.

    sampled text --parse_model_output--> content, tool_calls        (for the agent)
    messages     --convert_messages_for_template--> plain messages  (for the chat template)

The sampled text is kept by call id, so that a later turn renders the same text.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.generation.chat.template import (
    Message,
    content_text,
    decode_after,
    plain_message,
    shows_tools,
    text_of_ids,
)
from atroposlib.generation.chat.tool_parsers import VLLM_AVAILABLE, tool_parser_named
from atroposlib.generation.chat.tool_parsers.parsing import FoundCall

__all__ = ["ToolCall", "ToolCallTranslator", "VLLM_AVAILABLE"]

ID_CHARS = 9  # Mistral's chat template accepts ids of nine letters and digits only

HOW_TO_CALL = (
    "To call one, answer with a line "
    '<tool_call>{"name": "...", "arguments": {...}}</tool_call>; its result follows.'
)


class ToolCall(dict[str, Any]):
    """A tool call as a dict, with attributes like the openai package's object.

    Example: {"id": "call12345", "type": "function",
    "function": {"name": "add", "arguments": '{"a": 1}'}}
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class ToolCallTranslator:
    """Parses tool calls of a session, and writes the calls back as sampled.

    ``parser_name``: hermes, llama3_json, mistral, qwen3_coder, or one of vLLM's; ConfigError
    for an unknown name.
    """

    def __init__(self, tokenizer: Any, parser_name: str = "hermes") -> None:
        self.tokenizer = tokenizer
        self.parser_name = parser_name
        self.parser = tool_parser_named(parser_name, tokenizer)
        self.raw_text_of: dict[str, str] = {}  # call id -> the whole sampled text

    def parse_model_output(
        self,
        raw_text: str,
        tool_choice: str | Mapping[str, Any] | None = "auto",
        tools: Sequence[Mapping[str, Any]] | None = None,
        whole: str | None = None,
    ) -> tuple[str | None, list[ToolCall] | None, str]:
        """``(content, tool_calls or None, finish reason)``.

        Without tools, with ``tool_choice`` "none", or where no well-formed call is found, it
        is ``(raw_text, None, "stop")``. Content is the text before the calls, or None.
        ``whole``: the sampled text, where ``raw_text`` is cut at a stop string.
        """
        if not tools or tool_choice == "none":
            return raw_text, None, "stop"
        parsed = self.parser.parse(raw_text, tools)
        if parsed is None:
            return raw_text, None, "stop"
        calls = [_tool_call(call) for call in parsed.calls]
        sampled = raw_text if whole is None else whole
        self.raw_text_of.update((call["id"], sampled) for call in calls)
        return parsed.content or None, calls, "tool_calls"

    def reconstruct_raw_text_from_tool_calls(self, tool_calls: Sequence[Any]) -> str:
        """The sampled text of the calls; text in the model's format for unknown calls."""
        if not tool_calls:
            return ""
        calls = [plain_message(call) for call in tool_calls]
        known = self.raw_text_of.get(str(calls[0].get("id")))
        if known is not None:
            return known
        return self.parser.write([_found_call(call) for call in calls])

    def convert_messages_for_template(self, messages: Sequence[Any]) -> list[Message]:
        """Assistant messages with calls become text messages; the rest is unchanged.

        A template that renders calls (``ToolParser.native``) gets them unchanged.
        """
        plain = [plain_message(message) for message in messages]
        return plain if self.parser.native else [self._convert(message) for message in plain]

    def decode_with_tool_awareness(
        self, token_ids: Sequence[int], has_tools: bool = False, before: Sequence[int] = ()
    ) -> str:
        """Text of a sample after the tokens ``before``.

        With tools the special tokens are kept, because calls may contain them. Tokens that
        end the turn are removed, because the chat template adds these tokens.
        """
        ids = list(token_ids)
        while has_tools and ids and self._ends_turn(ids[-1]):
            ids.pop()
        return decode_after(self.tokenizer, before, ids, skip_special=not has_tools)

    def _ends_turn(self, token: int) -> bool:
        text = text_of_ids(self.tokenizer, [token], skip_special=False)
        if any(marker in text for marker in self.parser.markers):
            return False
        if token == getattr(self.tokenizer, "eos_token_id", None):
            return True
        return bool(text) and not text_of_ids(self.tokenizer, [token], skip_special=True)

    def _convert(self, message: Message) -> Message:
        calls = message.get("tool_calls")
        if message.get("role") != "assistant" or not calls:
            return message
        text = self.reconstruct_raw_text_from_tool_calls(calls)
        known = str(plain_message(calls[0]).get("id")) in self.raw_text_of
        if message.get("content") and not known:  # sampled text contains the content already
            text = f"{message['content']}\n{text}"
        kept = {k: v for k, v in message.items() if k not in ("tool_calls", "content")}
        return {**kept, "content": text}


def _tool_call(call: FoundCall) -> ToolCall:
    function = ToolCall(name=call.name, arguments=call.arguments)
    return ToolCall(id=uuid.uuid4().hex[:ID_CHARS], type="function", function=function)


def _found_call(call: Message) -> FoundCall:
    function = plain_message(call.get("function") or {})
    arguments = function.get("arguments") or {}
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return FoundCall(str(function.get("name", "")), arguments)


def with_visible_tools(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    tokenizer: Any,
    parser: str | None,
    *,
    describe: bool,
) -> list[Message]:
    """``messages``; tools that the chat template ignores are described in the system message.

    Raises ConfigError if ``describe`` is false, or if the calls have another format.
    """
    if shows_tools(tokenizer, tools):
        return list(messages)
    if not describe:
        name = getattr(tokenizer, "name_or_path", None) or "this tokenizer"
        raise ConfigError(
            f"the chat template of {name} ignores tools, so the model would not see them: "
            "take a model whose template has tools, or set --env.describe_tools true "
            "(of a proxy: describe_tools in POST /sessions/create)"
        )
    if parser != "hermes":
        raise ConfigError(
            f"describe_tools: calls are described for tool_parser hermes, not {parser}"
        )
    lines = [json.dumps(tool.get("function", tool)) for tool in tools]
    text = "\n".join(["You may call these functions:", *lines, HOW_TO_CALL])
    if not messages or messages[0].get("role") != "system":
        return [{"role": "system", "content": text}, *messages]
    first = messages[0]
    before = content_text(first.get("content"))
    return [{**first, "content": f"{before}\n\n{text}"}, *messages[1:]]

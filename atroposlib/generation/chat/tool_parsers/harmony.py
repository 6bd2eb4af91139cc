"""Channels of gpt-oss: ``<|channel|>commentary to=functions.add<|message|>{...}<|call|>``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from atroposlib.generation.chat.tool_parsers.parsing import (
    AnswerParser,
    FoundCall,
    Parsed,
    Tools,
    call_of,
)
from atroposlib.text.parts import CHANNEL, harmony_messages, split
from atroposlib.text.tool_calls import MalformedCall, read_json_value, skip_space

FUNCTIONS = "functions."


class HarmonyParser(AnswerParser):
    """Messages to ``functions.NAME`` are calls; the final channel is the content.

    The chat template writes earlier calls.
    """

    native: ClassVar[bool] = True
    markers: ClassVar[tuple[str, ...]] = ("<|channel|>", "<|message|>", "<|start|>")

    def parse(self, raw: str, tools: Tools) -> Parsed | None:
        try:
            calls = [
                _call(message.recipient.removeprefix(FUNCTIONS), message.body)
                for message in harmony_messages(raw)
                if message.recipient and message.recipient.startswith(FUNCTIONS)
            ]
        except MalformedCall:
            return None
        return Parsed(split(raw).final, calls) if calls else None

    def write(self, calls: Sequence[FoundCall]) -> str:
        return "<|start|>assistant".join(
            f"{CHANNEL}commentary to={FUNCTIONS}{call.name} <|constrain|>json"
            f"<|message|>{call.arguments}<|call|>"
            for call in calls
        )


def _call(name: str, body: str) -> FoundCall:
    arguments, end = read_json_value(body, 0)
    if skip_space(body, end) < len(body):
        raise MalformedCall("text after the arguments")
    return call_of({"name": name, "arguments": arguments})

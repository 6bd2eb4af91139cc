"""Messages as callers write them, made into what a text chat template can take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.errors import ConfigError

Message = dict[str, Any]

TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})


def plain_message(message: Any) -> Message:
    """A message or tool call as a dict; the openai package's objects are read too."""
    if isinstance(message, Mapping):
        return dict(message)
    dump = getattr(message, "model_dump", None)
    if dump is None:
        raise ConfigError(f"messages: a message is a dict, not {type(message).__name__}")
    return dict(dump(exclude_none=True))


def template_messages(messages: Sequence[Any]) -> list[Message]:
    """Messages whose ``content`` is one text: None becomes "", text parts are joined.

    Raises:
        ConfigError: a part is no text, such as an image: rows of text tokens could not say
            what the model saw.
    """
    plain = [plain_message(message) for message in messages]
    return [
        {**message, "content": content_text(message.get("content"), f"messages[{i}]")}
        for i, message in enumerate(plain)
    ]


def content_text(content: Any, where: str = "message") -> str:
    """The text of ``content``: a string, None, or a list of text parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise ConfigError(f"{where}.content: a string or a list of parts")
    return "".join(_part_text(part, where) for part in content)


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    part = plain_message(part)
    kind = str(part.get("type", "text"))
    if kind not in TEXT_PARTS:
        raise ConfigError(
            f"{where}.content: a part of type {kind!r} cannot be kept as text tokens; managed "
            "sessions take text only, so call the server's own chat_completion for it"
        )
    return str(part.get("refusal" if kind == "refusal" else "text") or "")

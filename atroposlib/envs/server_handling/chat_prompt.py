"""Messages to prompt text and ids, the way the model saw them in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Words no chat template looks for, so it cannot strip what stands between them.
_SHIELDS = {"<think>": "\u2060[thinking\u2060", "</think>": "\u2060thinking]\u2060"}

Messages = Sequence[Mapping[str, Any]]


def has_template(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def render(
    tokenizer: Any,
    messages: Messages,
    *,
    preserve_think_blocks: bool = False,
    template_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """The prompt text; a generation prompt is added unless the assistant spoke last.

    Without a template: one ``role: content`` line per message.

    Args:
        preserve_think_blocks: keep ``<think>`` blocks of earlier turns even where the
            template would drop them.
    """
    ask = not messages or messages[-1].get("role") != "assistant"
    if not has_template(tokenizer):
        lines = [f"{m['role']}: {m['content']}" for m in messages]
        return "\n".join([*lines, "assistant:"] if ask else lines)
    shown = [_shielded(m) for m in messages] if preserve_think_blocks else list(messages)
    text = str(
        tokenizer.apply_chat_template(
            shown, tokenize=False, add_generation_prompt=ask, **(template_kwargs or {})
        )
    )
    if preserve_think_blocks:
        for marker, shield in _SHIELDS.items():
            text = text.replace(shield, marker)
    return text


def encode_prompt(tokenizer: Any, text: str) -> list[int]:
    """Ids of a whole prompt: a chat template already wrote the special tokens into it."""
    return list(tokenizer.encode(text, add_special_tokens=not has_template(tokenizer)))


def encode_suffix(tokenizer: Any, text: str) -> list[int]:
    """Ids of text in the middle of a sequence."""
    return list(tokenizer.encode(text, add_special_tokens=False)) if text else []


def raw_continuation(tokenizer: Any, prompt_ids: list[int], tokens: list[int]) -> str:
    """Text of ``tokens`` with special tokens, as it reads after the prompt.

    Decoded together with the prompt: some tokenizers drop a leading space otherwise.
    """
    before = tokenizer.decode(prompt_ids, skip_special_tokens=False)
    whole = tokenizer.decode(prompt_ids + tokens, skip_special_tokens=False)
    if whole.startswith(before):
        return str(whole[len(before) :])
    return str(tokenizer.decode(tokens, skip_special_tokens=False))


def _shielded(message: Mapping[str, Any]) -> dict[str, Any]:
    shown = dict(message)
    if shown.get("role") == "assistant" and isinstance(shown.get("content"), str):
        for marker, shield in _SHIELDS.items():
            shown["content"] = shown["content"].replace(marker, shield)
    return shown

"""What a managed session answers with, in the openai package's types."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from atroposlib.generation.engines.openai_base import chat_completion_of
from atroposlib.generation.sampling.types import Generation

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

_OBJECT_OF = {"chatcmpl": "chat.completion", "cmpl": "text_completion"}


def reply_payload(
    prefix: str, model: str, choices: list[dict[str, Any]], outputs: Sequence[Generation]
) -> dict[str, Any]:
    """The fields of a completion; ``prefix`` (chatcmpl, cmpl) says which kind."""
    prompt = len(outputs[0].prompt_ids)
    sampled = sum(len(output.tokens) for output in outputs)
    return {
        "id": f"{prefix}-{uuid.uuid4()}",
        "object": _OBJECT_OF[prefix],
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
        },
    }


def chat_reply(payload: dict[str, Any]) -> ChatCompletion:
    """The chat completion of ``payload``; tool calls in it stay plain dicts."""
    if any("tool_calls" in choice["message"] for choice in payload["choices"]):
        from atroposlib.generation.chat.tool_completions import tool_completion_of

        return tool_completion_of(payload)
    return chat_completion_of(payload)


def taken_template_kwargs(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The template's options out of ``kwargs``; agents put them into ``extra_body``."""
    extra = dict(kwargs.get("extra_body") or {})
    inner = extra.pop("chat_template_kwargs", None)
    if inner is not None:
        kwargs["extra_body"] = extra
    return {**(inner or {}), **(kwargs.pop("chat_template_kwargs", None) or {})}

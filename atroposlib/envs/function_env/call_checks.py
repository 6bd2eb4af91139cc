"""Checks of what a function asks of its model: sampling keywords and messages.

A misspelt keyword would be sent and ignored by the server, and a message without content would be
sampled from an empty prompt. Environments of the original pass every keyword on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from atroposlib.errors import ConfigError
from atroposlib.generation.sampling.generation import CONSTRAINTS, NEUTRAL
from atroposlib.settings.sentences import did_you_mean

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
# Sampling parameters of OpenAI, vLLM and SGLang, and options of a request.
SAMPLING = frozenset(
    {*NEUTRAL, *CONSTRAINTS, "max_tokens", "max_new_tokens", "max_completion_tokens", "n"}
    | {"stop", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "seed"}
    | {"logprobs", "top_logprobs", "prompt_logprobs", "skip_special_tokens", "stream"}
    | {"spaces_between_special_tokens", "truncate_prompt_tokens", "priority", "user"}
    | {"tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "skip_reasoning"}
    | {"chat_template", "chat_template_kwargs", "add_generation_prompt", "lora_path"}
    | {"continue_final_message", "add_special_tokens", "return_routed_experts", "model"}
    | {"extra_body", "extra_headers", "extra_query", "timeout", "split", "best_of", "echo"}
)


def require_sampling(names: Iterable[str]) -> None:
    """Raise ConfigError for a keyword that is no sampling parameter; names the nearest one."""
    for name in names:
        if name not in SAMPLING:
            raise ConfigError(
                f"{name} is no sampling parameter{did_you_mean(name, SAMPLING)} (what only your"
                f" server knows: extra_body={{{name!r}: ...}})"
            )


def checked_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Copies of the messages. Raises ConfigError: one has no known role, or no content."""
    if isinstance(messages, Mapping):
        raise ConfigError(
            "a chat takes a list of messages or a text, not one message: write [message]"
        )
    checked = []
    for i, message in enumerate(messages):
        if isinstance(message, str):
            raise ConfigError(
                f"messages[{i}] is a text: a message is {{'role': 'user', 'content': text}}"
            )
        fields = dict(message)
        role = fields.get("role")
        if role not in ROLES:
            hint = did_you_mean(role, ROLES) if isinstance(role, str) else ""
            shown = f"role {role!r}" if "role" in fields else f"the keys {', '.join(fields)}"
            raise ConfigError(
                f"messages[{i}] has {shown}{hint or '; a role is one of ' + ', '.join(ROLES)}"
            )
        if fields.get("content") is None and not fields.get("tool_calls"):
            keys = ", ".join(map(str, fields))
            raise ConfigError(
                f"messages[{i}] has the keys {keys}: a message needs content, or tool_calls"
            )
        checked.append(fields)
    return checked

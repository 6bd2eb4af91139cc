"""A chat as token ids and training labels, from the tokenizer's chat template.

For text whose tokens were not kept. Where the sampler returns them, a managed server is
exact and this is not: a template may render what the model wrote differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.errors import AtroposError
from atroposlib.wire import MASKED

UNMASKED_ROLES = ("assistant", "agent")


class TemplateNotPrefixStable(AtroposError, ValueError):
    """The chat template rewrites earlier turns, so no position says where a turn begins."""


def tokenize_for_trainer(
    tokenizer: Any,
    chat: Sequence[Mapping[str, Any]],
    include_messages: bool = False,
    train_on_all_assistant_turns: bool = False,
    finish_reason: str = "",
) -> dict[str, Any]:
    """Tokens and masks of ``chat``, both (T,); masks are -100 where not trained.

    Trained is the last message, or with ``train_on_all_assistant_turns`` every message
    whose role is in ``UNMASKED_ROLES``. ``finish_reason`` "length": the model never wrote
    the end token that the template adds, so what follows its text is cut.

    Raises:
        TemplateNotPrefixStable: the template does not render earlier turns as a prefix.
    """
    messages = [dict(message) for message in chat]
    tokens = _render(tokenizer, messages)
    masks = [MASKED] * len(tokens)
    for i, message in enumerate(messages):
        last = i == len(messages) - 1
        if train_on_all_assistant_turns:
            if message["role"] not in UNMASKED_ROLES:
                continue
        elif not last:
            continue
        start = len(_prefix(tokenizer, messages[:i], tokens, add_generation_prompt=True))
        end = len(tokens)
        if not last:
            end = len(
                _prefix(tokenizer, messages[: i + 1], tokens, add_generation_prompt=False)
            )
        masks[start:end] = tokens[start:end]
    if finish_reason == "length":
        kept = _length_without_end(tokenizer, tokens)
        tokens, masks = tokens[:kept], masks[:kept]
    result: dict[str, Any] = {"tokens": tokens, "masks": masks}
    if include_messages:
        result["messages"] = messages
    return result


def _render(
    tokenizer: Any, messages: list[dict[str, Any]], add_generation_prompt: bool = False
) -> list[int]:
    # return_dict=False: transformers 5 returns a mapping otherwise, whose length is 2.
    ids = tokenizer.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=add_generation_prompt, return_dict=False
    )
    return [int(token) for token in ids]


def _prefix(
    tokenizer: Any,
    messages: list[dict[str, Any]],
    tokens: list[int],
    add_generation_prompt: bool,
) -> list[int]:
    if not messages:
        return []
    prefix = _render(tokenizer, messages, add_generation_prompt)
    if tokens[: len(prefix)] != prefix:
        at = next((i for i, (a, b) in enumerate(zip(prefix, tokens)) if a != b), len(tokens))
        raise TemplateNotPrefixStable(
            f"the chat template renders the first {len(messages)} messages differently when "
            f"more follow (token {at}): collect the turns with a managed server instead"
        )
    return prefix


def _length_without_end(tokenizer: Any, tokens: list[int]) -> int:
    """Length up to the last end token, if only white space follows it."""
    end = tokenizer.eos_token_id
    for i in range(len(tokens) - 1, max(-1, len(tokens) - 4), -1):
        if tokens[i] == end:
            return i
        if tokenizer.decode([tokens[i]]).strip():
            break
    return len(tokens)

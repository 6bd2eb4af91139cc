"""Token ids and training labels of a chat, from the tokenizer's chat template.

For text without recorded tokens. Where the sampler returns tokens, use a managed server: a
template may render the model's text differently.

A turn is located by rendering the messages before it. Two deviations of templates are handled:
a generation prompt that opens a reasoning block which the finished turn lacks, and reasoning
that only the last turn keeps. Any other rewriting of earlier turns is rejected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.errors import AtroposError
from atroposlib.wire import MASKED

UNMASKED_ROLES = ["assistant", "agent"]


class TemplateNotPrefixStable(AtroposError, ValueError):
    """The chat template rewrites earlier turns, so the start of a turn is unknown."""


def tokenize_for_trainer(
    tokenizer: Any,
    chat: Sequence[Mapping[str, Any]],
    include_messages: bool = False,
    train_on_all_assistant_turns: bool = False,
    finish_reason: str = "",
) -> dict[str, Any]:
    """Tokens and masks of ``chat``, both (T,); masks are -100 where not trained.

    Trained is the last message, or with ``train_on_all_assistant_turns`` every message whose
    role is in ``UNMASKED_ROLES``. ``finish_reason`` "length": the model did not write the end
    token of the template, so it is cut, with the white space after it. Raises
    TemplateNotPrefixStable: the template does not render earlier turns as a prefix.
    """
    messages = [dict(message) for message in chat]
    tokens = render_chat(tokenizer, messages)
    masks = [MASKED] * len(tokens)
    for i, message in enumerate(messages):
        last = i == len(messages) - 1
        trained = message["role"] in UNMASKED_ROLES if train_on_all_assistant_turns else last
        if not trained:
            continue
        start = start_of_turn(tokenizer, messages[:i], tokens)
        end = (
            len(tokens) if last else _end_of_turn(tokenizer, messages[: i + 1], tokens, start)
        )
        masks[start:end] = tokens[start:end]
    if finish_reason == "length":
        kept = _length_without_end(tokenizer, tokens)
        tokens, masks = tokens[:kept], masks[:kept]
    result: dict[str, Any] = {"tokens": tokens, "masks": masks}
    if include_messages:
        result["messages"] = messages
    return result


def render_chat(
    tokenizer: Any, messages: list[dict[str, Any]], add_generation_prompt: bool = False
) -> list[int]:
    """Token ids of a chat."""
    options = {"tokenize": True, "add_generation_prompt": add_generation_prompt}
    try:
        # By default transformers 5 returns a mapping of two entries.
        rendered = tokenizer.apply_chat_template(messages, return_dict=False, **options)
    except TypeError as error:  # a tokenizer of another library may lack the argument
        if "return_dict" not in str(error):
            raise
        rendered = tokenizer.apply_chat_template(messages, **options)
    ids = rendered["input_ids"] if isinstance(rendered, Mapping) else rendered
    return [int(token) for token in ids]


def start_of_turn(tokenizer: Any, before: list[dict[str, Any]], tokens: list[int]) -> int:
    """Number of tokens before the model's turn.

    Raises TemplateNotPrefixStable: the template rewrites the turns before it.
    """
    given = _render_prompt(tokenizer, before)
    shared = shared_length(given, tokens)
    if shared == len(given):
        return shared
    # The prompt may end with text that the turn lacks, but earlier turns must be unchanged.
    earlier = render_chat(tokenizer, before) if before else []
    if shared_length(earlier, tokens) < len(earlier):
        raise _rewritten(len(before), shared)
    return max(shared, len(earlier))


def _render_prompt(tokenizer: Any, before: list[dict[str, Any]]) -> list[int]:
    if before:
        return render_chat(tokenizer, before, add_generation_prompt=True)
    from jinja2 import TemplateError

    try:
        return render_chat(tokenizer, [], add_generation_prompt=True)
    except (IndexError, ValueError, TemplateError):  # most templates reject an empty chat
        return []


def _end_of_turn(
    tokenizer: Any, messages: list[dict[str, Any]], tokens: list[int], start: int
) -> int:
    """End of the last of ``messages`` within ``tokens``, which contain later messages."""
    alone = render_chat(tokenizer, messages)
    shared = shared_length(alone, tokens)
    if shared == len(alone):
        return shared
    # A last turn may keep reasoning that it loses when others follow. The rest of the turn is
    # then at ``start``.
    for i in range(start, len(alone)):
        left = alone[i:]
        if tokens[start : start + len(left)] == left and _text(
            tokenizer, alone[start:i]
        ).rstrip().endswith("</think>"):
            return start + len(left)
    raise _rewritten(len(messages), shared)


def shared_length(given: Sequence[Any], tokens: Sequence[Any]) -> int:
    """Length of the common prefix."""
    pairs = enumerate(zip(given, tokens))
    return next((i for i, (a, b) in pairs if a != b), min(len(given), len(tokens)))


def _rewritten(count: int, at: int) -> TemplateNotPrefixStable:
    return TemplateNotPrefixStable(
        f"the chat template renders the first {count} messages differently when more follow "
        f"(token {at}): collect the turns with a managed server instead"
    )


def _length_without_end(tokenizer: Any, tokens: list[int]) -> int:
    """Length up to the last end token, if only white space follows it."""
    for i in range(len(tokens) - 1, max(-1, len(tokens) - 4), -1):
        if tokens[i] == tokenizer.eos_token_id:
            return i
        if _text(tokenizer, [tokens[i]]).strip():
            break
    return len(tokens)


def _text(tokenizer: Any, ids: list[int]) -> str:
    """Text of ``ids``; "?" for a tokenizer without ``decode``."""
    decode = getattr(tokenizer, "decode", None)
    return "?" if decode is None else str(decode(ids))

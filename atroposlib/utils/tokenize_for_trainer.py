"""Token ids and training labels of a chat, from the tokenizer's chat template.

For text without recorded tokens. Where the sampler returns tokens, use a managed server: a
template may render the model's text differently.

A turn is located by rendering the messages before it. Three deviations of templates are
handled: a generation prompt that opens a reasoning block which the finished turn lacks; a last
turn without its reasoning, which is rendered as it is sampled; and reasoning that only the last
turn keeps, so that earlier turns are not trained. All further rewriting is rejected.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.errors import AtroposError
from atroposlib.text.parts import opening_of
from atroposlib.utils.tokenizers.texts import added_special_tokens
from atroposlib.wire import MASKED

logger = logging.getLogger(__name__)
UNMASKED_ROLES = ["assistant", "agent"]
OPENING_TOKENS = 16  # end of a prompt that may open the reasoning


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
    tokens of the template, so they are cut, with the white space that follows. A turn whose
    content the template dropped is not trained. Raises TemplateNotPrefixStable: the template
    does not render earlier turns as a prefix.
    """
    messages = [dict(message) for message in chat]
    tokens, begin = render_turn(tokenizer, messages[:-1], messages[-1])
    masks = [MASKED] * len(tokens)
    if not train_on_all_assistant_turns or messages[-1]["role"] in UNMASKED_ROLES:
        masks[begin:] = tokens[begin:]
    for i, message in enumerate(messages[:-1]):
        if not train_on_all_assistant_turns or message["role"] not in UNMASKED_ROLES:
            continue
        start = start_of_turn(tokenizer, messages[:i], tokens)
        end = _end_of_turn(tokenizer, messages[: i + 1], tokens, start)
        if _keeps_content(tokenizer, message, tokens[start:end], tokens[:start]):
            masks[start:end] = tokens[start:end]
        else:
            logger.warning("turn %d is not trained: the chat template drops its reasoning", i)
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
    rendered = tokenizer.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=add_generation_prompt
    )
    # A mapping comes from a tokenizer that the library did not load.
    ids = rendered["input_ids"] if isinstance(rendered, Mapping) else rendered
    return [int(token) for token in ids]


def render_turn(
    tokenizer: Any, before: list[dict[str, Any]], message: dict[str, Any]
) -> tuple[list[int], int]:
    """Tokens up to the end of a turn, and the number of tokens before the turn.

    Where the template drops a part of the turn's content, e.g. its reasoning, the tokens are
    the tokens of sampling: generation prompt, content, end of the turn. Raises as
    :func:`start_of_turn`.
    """
    tokens = render_chat(tokenizer, [*before, message])
    start = start_of_turn(tokenizer, before, tokens)
    if _keeps_content(tokenizer, message, tokens[start:], tokens[:start]):
        return tokens, start
    prompt = _render_prompt(tokenizer, before)
    content = _without_opening(_content(message), _text(tokenizer, prompt[-OPENING_TOKENS:]))
    sampled = [int(token) for token in tokenizer.encode(content, add_special_tokens=False)]
    end = tokens[_length_without_end(tokenizer, tokens) :]
    return [*prompt, *sampled, *end], len(prompt)


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else ""  # parts and calls are the template's


def _without_opening(content: str, prompt_end: str) -> str:
    """``content`` without the opening mark of its reasoning, if the prompt ends with that."""
    opening = opening_of(prompt_end)
    mark = opening.rstrip()
    if not mark or not content.lstrip().startswith(mark):
        return content
    rest = content.lstrip().removeprefix(mark)
    spaces = len(rest) - len(rest.lstrip())
    return rest[min(len(opening) - len(mark), spaces) :]


def _keeps_content(
    tokenizer: Any, message: Mapping[str, Any], turn: list[int], before: list[int]
) -> bool:
    """Whether the content is in the tokens of its turn, apart from white space."""
    if not hasattr(tokenizer, "decode"):
        return True
    content = _without_opening(_content(message), _text(tokenizer, before[-OPENING_TOKENS:]))
    return "".join(content.split()) in "".join(_text(tokenizer, turn).split())


def start_of_turn(tokenizer: Any, before: list[dict[str, Any]], tokens: list[int]) -> int:
    """Number of tokens before the model's turn.

    Raises TemplateNotPrefixStable: the template rewrites the turns before it.
    """
    rendered = _render_prompt(tokenizer, before)
    shared = shared_length(rendered, tokens)
    if shared == len(rendered):
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
    # A last turn may keep reasoning that it loses when further turns follow. The rest of the
    # turn is then at ``start``.
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
    """Length without the special tokens at the end, and the white space after the first."""
    ends = _special_ids(tokenizer)
    length = len(tokens)
    for i in range(len(tokens) - 1, -1, -1):
        if tokens[i] in ends:
            length = i
        elif _text(tokenizer, [tokens[i]]).strip():
            break
    return length


def _special_ids(tokenizer: Any) -> set[int]:
    """Ids of all special tokens: not every turn ends with the end token of a text."""
    named = getattr(tokenizer, "all_special_ids", None) or ()
    return {tokenizer.eos_token_id, *named, *added_special_tokens(tokenizer)}


def _text(tokenizer: Any, ids: list[int]) -> str:
    """Text of ``ids``; "?" for a tokenizer without ``decode``."""
    decode = getattr(tokenizer, "decode", None)
    return "?" if decode is None else str(decode(ids))

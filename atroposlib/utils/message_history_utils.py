"""Shortening of long histories: reasoning is cut, middle turns are removed."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from atroposlib.errors import AtroposError, boundary
from atroposlib.text.parts import Block, reasoning_blocks
from atroposlib.utils.tokenize_for_trainer import (
    UNMASKED_ROLES,
    shared_length,
    tokenize_for_trainer,
)

logger = logging.getLogger(__name__)

STEP_FIELDS = ("messages", "tokens", "masks", "seed", "parsed_actions")
KEPT_AT_THE_END = 2  # the last observation and the answer to it
# Values per token, of the sequence as it was sampled.
REALIGNED = ("advantages", "versions")
# Valid for the whole history only: the policy never sampled from the shortened history.
OF_THE_WHOLE_HISTORY = (
    "inference_logprobs",
    "ref_logprobs",
    "distill_token_ids",
    "distill_logprobs",
    "routed_experts",
)


def strip_thinking(response_text: str) -> str:
    """``response_text`` without its first reasoning; unchanged if that has not ended."""
    block = _first_thought(response_text)
    if block is None:
        return response_text
    return response_text[: block.start] + response_text[block.end :]


def truncate_thinking(response_text: str, tokenizer: Any, max_think_tokens: int) -> str:
    """The first reasoning block with at most ``max_think_tokens`` of its end.

    A longer block becomes "... " and its last paragraph, or if that is still too long, its
    last tokens. Text without a whole block, or that the tokenizer fails on, is unchanged.
    """
    block = _first_thought(response_text)
    if block is None:
        return response_text
    before, after = response_text[: block.start], response_text[block.end :]
    try:
        with boundary("truncate_thinking", response_text, "tokenization"):
            kept = _last_part(block.inner.strip(), tokenizer, max_think_tokens)
    except AtroposError as error:
        logger.warning("reasoning stays as long as it is: %s", error)
        return response_text
    inside = f"\n{kept}\n" if kept else ""
    return f"{before}{block.opening}{inside}{block.closing}{after}"


def _first_thought(text: str) -> Block | None:
    whole = (block for block in reasoning_blocks(text) if block.opening and block.closing)
    return next(whole, None)


def _last_part(thinking: str, tokenizer: Any, max_tokens: int) -> str:
    tokens = _encode(tokenizer, thinking)
    if not thinking or len(tokens) <= max_tokens:
        return thinking
    paragraph = thinking.rpartition("\n\n")[2].strip()
    if len(_encode(tokenizer, paragraph)) <= max_tokens:
        return f"... {paragraph}"
    end = tokens[-max_tokens:] if max_tokens > 0 else []  # [-0:] would be all tokens
    kept = str(tokenizer.decode(end)).strip()
    return f"... {kept}" if kept else ""


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))


def ensure_trajectory_token_limit(
    trajectory: Sequence[Mapping[str, Any]], tokenizer: Any, max_trajectory_tokens: int
) -> list[dict[str, Any]]:
    """The steps of ``trajectory`` with no sequence over ``max_trajectory_tokens`` tokens.

    A step is a group of alternatives. From a step that is too long, turns after the first
    message go, oldest first and as many from each alternative, until all fit; its first
    message and its last two messages stay. A step that still does not fit, or that lacks one
    of messages, tokens, masks, seed and parsed_actions, is left out.

    All remaining fields of a step stay. Where turns went, per-token advantages and versions
    are realigned, and logprobs, which belong to the whole history, become None. Raises
    TemplateNotPrefixStable: a shortened history cannot be tokenized.
    """
    fitting = []
    for i, step in enumerate(trajectory):
        missing = [name for name in STEP_FIELDS if step.get(name) is None]
        if missing:
            logger.warning("step %d is left out: it has no %s", i, ", ".join(missing))
            continue
        shortened = _shorten(step, tokenizer, max_trajectory_tokens)
        if shortened is None:
            logger.warning(
                "step %d is left out: over %d tokens even without its middle turns",
                i,
                max_trajectory_tokens,
            )
            continue
        fitting.append(shortened)
    return fitting


def _shorten(
    step: Mapping[str, Any], tokenizer: Any, max_tokens: int
) -> dict[str, Any] | None:
    """``step`` with as few turns removed as make it fit; None if no number does."""
    messages = [list(alternative) for alternative in step["messages"]]
    tokens, masks = step["tokens"], step["masks"]
    while max(map(len, tokens), default=0) > max_tokens:
        count = min(map(_next_turns, messages))
        if count == 0:
            return None
        for alternative in messages:
            del alternative[1 : 1 + count]
        rows = [tokenize_for_trainer(tokenizer, alternative) for alternative in messages]
        tokens, masks = [row["tokens"] for row in rows], [row["masks"] for row in rows]
    result = dict(step)
    if tokens is step["tokens"]:
        return result
    spans = [_removed_span(old, new) for old, new in zip(step["tokens"], tokens)]
    result.update(messages=messages, tokens=tokens, masks=masks)
    for name in REALIGNED:
        if step.get(name) is not None:
            result[name] = _without(step[name], spans)
    # The masks of the step take precedence over masks of the template.
    result["masks"] = _without(step["masks"], spans) or masks
    result.update({name: None for name in OF_THE_WHOLE_HISTORY if name in step})
    return result


def _next_turns(messages: Sequence[Mapping[str, Any]]) -> int:
    """Number of messages to remove at index 1: an observation with its answer, or a message."""
    removable = len(messages) - 1 - KEPT_AT_THE_END
    if removable >= 2:
        observed, answered = messages[1]["role"], messages[2]["role"]
        if observed not in UNMASKED_ROLES and answered in UNMASKED_ROLES:
            return 2
    return min(1, max(0, removable))


def _removed_span(old: Sequence[int], new: Sequence[int]) -> tuple[int, int] | None:
    """The stretch of ``old`` whose removal gives ``new``; None if there is none."""
    start, removed = shared_length(old, new), len(old) - len(new)
    rest = list(old[start + removed :]) if removed >= 0 else None
    return (start, start + removed) if rest == list(new[start:]) else None


def _without(
    rows: Sequence[Sequence[Any]], spans: Sequence[tuple[int, int] | None]
) -> list[list[Any]] | None:
    """Each row without its stretch; None where more than a stretch was removed."""
    kept = [[*row[: span[0]], *row[span[1] :]] for row, span in zip(rows, spans) if span]
    return kept if len(kept) == len(spans) else None

"""Select sequences and pairs of a scored group, and split prompt from completion.

Pure functions from scores and tokens to indices and texts. Letters: G sequences of a group,
T tokens of a sequence.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.utils.tokenizers.texts import MAX_TOKENS_PER_CHARACTER, exact_text
from atroposlib.wire import MASKED, TRAINABLE_OUTCOMES, ScoredData

Line = dict[str, Any]


@dataclass(frozen=True)
class SelectionRules:
    """Bounds on the sequences or pairs of a group."""

    max_per_group: int  # sequences, or pairs, of a group
    allow_negative: bool  # scores <= 0 as well
    min_difference: float


def usable_rows(group: ScoredData) -> list[int]:
    """Rows whose score is a result of their text, thus without failed rollouts."""
    outcomes = group.outcomes or ["ok"] * len(group.tokens)
    return [g for g, outcome in enumerate(outcomes) if outcome in TRAINABLE_OUTCOMES]


def best_lines(
    group: ScoredData,
    rows: Sequence[int],
    rules: SelectionRules,
    tokenizer: Any,
    _rng: random.Random,
) -> list[Line]:
    """Lines of a group, best sequence first; only of ``rows``, the sequences that did not fail."""
    scores = [group.scores[g] for g in rows]
    prefix, answers = completions_of(group, rows, tokenizer)
    name = "messages" if tokenizer is None else "completion"
    return [{**prefix, name: answers[g], "score": scores[g]} for g in best_rows(scores, rules)]


def pair_lines(
    group: ScoredData,
    rows: Sequence[int],
    rules: SelectionRules,
    tokenizer: Any,
    rng: random.Random,
) -> list[Line]:
    """Lines of a group, best positive first; ``score`` is the score of the positive."""
    scores = [group.scores[g] for g in rows]
    prefix, answers = completions_of(group, rows, tokenizer)
    return [
        {**prefix, "pos": answers[i], "score": scores[i], "neg": answers[j]}
        for i, j in pairs(scores, rules, rng)
    ]


def best_rows(scores_G: Sequence[float], rules: SelectionRules) -> list[int]:
    """Indices of the sequences to keep, best first; ties in their order.

    Kept are scores above 0 (any, if allowed), which also exceed the lowest of the group by
    more than ``min_difference`` if that is positive; and of these the first ``max_per_group``.
    """
    lowest = min(scores_G, default=0.0)
    kept = [
        g
        for g in _best_first(scores_G, rules)
        if rules.min_difference <= 0 or scores_G[g] - lowest > rules.min_difference
    ]
    return kept[: rules.max_per_group]


def _best_first(scores_G: Sequence[float], rules: SelectionRules) -> list[int]:
    ranked = sorted(range(len(scores_G)), key=lambda g: -scores_G[g])
    return [g for g in ranked if rules.allow_negative or scores_G[g] > 0]


def pairs(
    scores_G: Sequence[float], rules: SelectionRules, rng: random.Random
) -> list[tuple[int, int]]:
    """(positive, negative) indices, best positive first.

    Negatives are the ``max_per_group`` lowest sequences. Each of the ``max_per_group`` best
    positives (scores above 0, any if allowed) gets a random negative that scores less than it
    by more than ``min_difference``; none is used twice, and a positive for which none is left is
    left out.
    """
    left = sorted(range(len(scores_G)), key=lambda g: scores_G[g])[: rules.max_per_group]
    chosen = []
    for positive in _best_first(scores_G, rules)[: rules.max_per_group]:
        # Below 0 the difference would let a "negative" score more than its positive.
        limit = scores_G[positive] - max(0.0, rules.min_difference)
        fitting = [g for g in left if scores_G[g] < limit]
        if fitting:
            negative = rng.choice(fitting)
            left.remove(negative)
            chosen.append((positive, negative))
    return chosen


def completions_of(
    group: ScoredData, rows: Sequence[int], tokenizer: Any
) -> tuple[dict[str, str], Sequence[Any]]:
    """{"prefix": the prompt} and the completion of each row; without a tokenizer, messages."""
    if tokenizer is None:
        messages = group.messages or []
        return {}, [messages[g] for g in rows]
    tokens = [group.tokens[g] for g in rows]
    length = prompt_length(tokens, [group.masks[g] for g in rows])
    prefix, completions = split_texts(tokenizer, tokens, length)
    return {"prefix": prefix}, completions


def prompt_length(
    tokens_G_T: Sequence[Sequence[int]], masks_G_T: Sequence[Sequence[int]]
) -> int:
    """Number of tokens of the longest common prefix of the group without generated tokens.

    Completions may begin alike, or be equal, so the prefix ends at the first trained token.
    Masks that train every token, or none, do not mark that position. Then it is the common
    prefix alone, and 0 if a sequence is the beginning of all sequences.
    """
    shortest = min(map(len, tokens_G_T))
    common = next(
        (t for t in range(shortest) if len({row[t] for row in tokens_G_T}) > 1), shortest
    )
    starts = [
        next(t for t, label in enumerate(mask) if label != MASKED)
        for mask in masks_G_T
        if any(label != MASKED for label in mask)
    ]
    if prompt := min(starts, default=0):
        return min(common, prompt)
    return common if common < shortest else 0


def split_texts(
    tokenizer: Any, tokens_G_T: Sequence[Sequence[int]], length: int
) -> tuple[str, list[str]]:
    """The text of the first ``length`` tokens, and for each sequence the text after it.

    Prefix and completion together are the text of the whole sequence, special tokens
    included: where a character straddles the boundary it belongs to the completion.
    """
    wholes = [exact_text(tokenizer, tokens) for tokens in tokens_G_T]
    for end in range(length, max(-1, length - MAX_TOKENS_PER_CHARACTER), -1):
        prefix = exact_text(tokenizer, tokens_G_T[0][:end])
        if all(whole.startswith(prefix) for whole in wholes):
            return prefix, [whole[len(prefix) :] for whole in wholes]
    prefix = exact_text(tokenizer, tokens_G_T[0][:length])
    return prefix, [exact_text(tokenizer, tokens[length:]) for tokens in tokens_G_T]

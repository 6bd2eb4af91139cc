"""Tokens that a teacher reads for a row, and the entries of its answer that belong to the row. Pure.

    row       p p p a b              trained from the place ``start`` on
    hint      h h h h h              instead of the prompt; None: the prompt of the row
    read      h h h h h a b          token t of the row is token t + ``offset`` of what is read
    kept      . . . A B              entries of trained tokens; A: the sampled token first

Letters: T tokens of a row, K_t entries at position t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.errors import InvalidGroup
from atroposlib.utils.tokenizers.vocabulary import VocabularyMap
from atroposlib.wire import MASKED, MAX_LOGPROB

# Rows of a sequence: ids and logprobs, (T, K_t) each.
TeacherRows = tuple[list[list[int]], list[list[float]]]
FIELD = "distill_token_ids"


@dataclass(frozen=True)
class Reading:
    """Tokens that a teacher reads for a row."""

    tokens: list[int]  # ids of the teacher
    offset: int  # a place in ``tokens`` less the place in the row


def answer_start(mask: Sequence[int]) -> int:
    """The place of the first trained token; the length of the row if there is none."""
    return next((j for j, label in enumerate(mask) if label != MASKED), len(mask))


def reading_of(
    tokens: Sequence[int],
    mask: Sequence[int],
    hint: Sequence[int] | None,
    vocabulary: VocabularyMap,
) -> Reading:
    """The tokens for the teacher: the row, or ``hint`` and the row from its first trained token on.

    Raises InvalidGroup: a token of the row is none of the tokenizer's.
    """
    start = answer_start(mask)
    read = list(tokens) if hint is None else [*hint, *tokens[start:]]
    try:
        ids = vocabulary.ids_for_teacher(read)
    except KeyError as unknown:
        problem = f"token {unknown} is none of the tokenizer's, so a teacher cannot read it"
        raise InvalidGroup("tokens", "", problem) from None
    return Reading(ids, 0 if hint is None else len(hint) - start)


def aligned_rows(
    reading: Reading,
    tokens: Sequence[int],
    mask: Sequence[int],
    answer: Mapping[str, Any],
    vocabulary: VocabularyMap,
    top_k: int = 0,
) -> TeacherRows:
    """The entries of the trained tokens in the ids of the row; no entry at further positions.

    Tokens that only the teacher has are left out: their probability belongs to the rest.

    Raises:
        InvalidGroup: the teacher did not read these tokens, a trained token has no logprob or fewer
            entries than ``top_k``, or a value is no logprob.
    """
    ids_T, logprobs_T = answer["prompt_topk_token_ids"], answer["prompt_topk_logprobs"]
    if list(answer["prompt_tokens"]) != reading.tokens:
        raise InvalidGroup(FIELD, "", "the teacher did not read the tokens that it was sent")
    checked_rows(ids_T, logprobs_T, len(reading.tokens))
    rows: TeacherRows = ([], [])
    for t, (token, label) in enumerate(zip(tokens, mask)):
        entries: dict[int, float] = {}
        if label != MASKED and t + reading.offset > 0:
            place = t + reading.offset
            entries = _entries_of(token, ids_T[place], logprobs_T[place], vocabulary, t)
            least = min(top_k, len(vocabulary.to_student))
            if (count := len(set(ids_T[place]))) < least:
                problem = f"the teacher returned {count} of the {least} likeliest tokens"
                raise InvalidGroup(FIELD, f"[{t}]", f"{problem} (env.teacher.top_k)")
        rows[0].append(list(entries))
        rows[1].append(list(entries.values()))
    return rows


def _entries_of(
    token: int,
    ids: Sequence[int],
    logprobs: Sequence[float],
    vocabulary: VocabularyMap,
    place: int,
) -> dict[int, float]:
    """Logprob by id of the row, the sampled token first."""
    for i, value in zip(ids, logprobs):
        if not value <= MAX_LOGPROB:  # also NaN
            problem = f"{value:g} of token {i} is no logprob, which is 0 or less"
            raise InvalidGroup(FIELD, f"[{place}]", problem)
    known = vocabulary.to_student
    entries = {known[i]: min(0.0, value) for i, value in zip(ids, logprobs) if i in known}
    own = entries.pop(token, None)
    if own is None or not math.isfinite(own):
        problem = "the teacher returned no logprob" if own is None else f"its logprob is {own}"
        raise InvalidGroup(FIELD, f"[{place}]", f"{problem} of the sampled token")
    return {token: own} | {i: value for i, value in entries.items() if math.isfinite(value)}


def checked_rows(
    ids: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]], length: int
) -> TeacherRows:
    """The rows of a sequence, an entry per token position; position 0 may be empty.

    Raises:
        InvalidGroup: a position is missing, or its numbers of ids and logprobs differ.
    """
    if not len(ids) == len(logprobs) == length:
        problem = f"{len(ids)} ids, {len(logprobs)} logprobs for {length} tokens"
        raise InvalidGroup(FIELD, "", problem)
    for position, (some, their) in enumerate(zip(ids, logprobs)):
        if len(some) != len(their):
            problem = f"{len(some)} ids and {len(their)} logprobs"
            raise InvalidGroup(FIELD, f"[{position}]", problem)
    return [list(row) for row in ids], [list(row) for row in logprobs]

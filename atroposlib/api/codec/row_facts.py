"""Facts of the rows of a group for the index of rollouts, computed where its columns are at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from atroposlib.wire.columns import Columns
from atroposlib.wire.messages import MASKED
from atroposlib.wire.safetensors import Array


class RowFact(NamedTuple):
    """Facts of one row; None: unknown. The names are columns of the index."""

    reward: float
    n_tokens: int
    n_trained: int | None
    version_min: int | None  # of the sampled tokens
    version_max: int | None
    logprob_mean: float | None  # of the trained tokens, at the sampler
    advantage: float | None  # mean over the trained tokens
    turns: int | None  # messages of the assistant
    tool_calls: int | None
    finish_reason: str | None
    outcome: str | None
    generate_s: float | None


class GroupFacts(NamedTuple):
    """Facts of one group."""

    item: str | None
    group_id: str | None
    rows: tuple[RowFact, ...]


class _Turn(msgspec.Struct):
    """What counts of a message; msgspec skips the rest without making objects."""

    role: Any = None
    tool_calls: Any = None


_MESSAGES = msgspec.json.Decoder(list[list[_Turn]])
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_LIST = msgspec.json.Decoder(list[Any])


def facts_of(columns: Columns) -> GroupFacts:
    """The facts of a checked group. A group without token arrays has facts of its lengths only."""
    G = len(columns.seq_lens)
    ends = np.cumsum(columns.seq_lens).tolist()
    spans = list(zip([0, *ends], ends))
    if len(columns.tokens) != (ends[-1] if ends else 0):
        spans = []  # a large JSON group, whose numbers are not kept
    metadata = _decoded(_OBJECT, columns.rest.get("metadata")) or {}
    own = metadata.get("rows")
    own_G = own if isinstance(own, list) and len(own) == G else [None] * G
    unknown: _Numbers = (None, None, None, None, None)
    numbers = _numbers(columns, spans) if spans else [unknown] * G
    turns = _turns(columns.rest.get("messages"), G)
    item = metadata.get("item", metadata.get("item_id"))
    rows = []
    for g, (reward, n_tokens, finish, outcome) in enumerate(
        zip(
            columns.scores.tolist(),
            columns.seq_lens.tolist(),
            _texts(columns, "finish_reasons", G),
            _texts(columns, "outcomes", G),
        )
    ):
        own_row = own_G[g]
        row: dict[str, Any] = own_row if isinstance(own_row, dict) else {}
        timings = row.get("timings")
        generate = timings.get("generate") if isinstance(timings, dict) else None
        rows.append(
            RowFact(
                reward,
                n_tokens,
                *numbers[g],
                turns=_count(row.get("turns"), turns[g][0]),
                tool_calls=_count(row.get("tool_calls"), turns[g][1]),
                finish_reason=finish,
                outcome=outcome,
                generate_s=float(generate) if isinstance(generate, (int, float)) else None,
            )
        )
    named = None if item is None else str(item)[:200]
    return GroupFacts(named, columns.group_id, tuple(rows))


_Numbers = tuple[int | None, int | None, int | None, float | None, float | None]


def _numbers(columns: Columns, spans: Sequence[tuple[int, int]]) -> list[_Numbers]:
    """(n_trained, version_min, version_max, logprob_mean, advantage) of each row."""
    trained = columns.masks != MASKED  # (T,)
    counts = [int(np.count_nonzero(trained[start:end])) for start, end in spans]
    low, high = _versions(columns.versions, [start for start, _ in spans])
    logprobs = _means(columns.floats.get("inference_logprobs"), trained, spans, counts)
    advantages = _means(columns.floats.get("advantages"), trained, spans, counts)
    return list(zip(counts, low, high, logprobs, advantages))


def _means(
    values: Array | None, trained: Array, spans: Sequence[tuple[int, int]], counts: list[int]
) -> list[float | None]:
    """Mean of each row's values over its trained tokens."""
    if values is None:
        return [None] * len(spans)
    return [  # row by row: an array of the whole group would be a fresh map of pages
        (
            float(np.dot(values[start:end], trained[start:end].astype(values.dtype))) / count
            if count
            else None
        )
        for (start, end), count in zip(spans, counts)
    ]


def _versions(
    versions: Array | None, starts: list[int]
) -> tuple[list[int | None], list[int | None]]:
    """Oldest and newest version of each row; -1 stands for tokens that were not sampled."""
    if versions is None:
        return [None] * len(starts), [None] * len(starts)
    signed = versions if versions.dtype == np.int32 else versions.astype(np.int32)
    highest = np.maximum.reduceat(signed, starts).tolist()
    lowest = np.minimum.reduceat(signed.view(np.uint32), starts).tolist()  # -1 is the largest
    known = [one >= 0 for one in highest]
    return (
        [one if good else None for one, good in zip(lowest, known)],
        [one if good else None for one, good in zip(highest, known)],
    )


def _turns(messages: bytes | None, G: int) -> list[tuple[int | None, int | None]]:
    """Messages of the assistant and their tool calls, of each row."""
    rows = _decoded(_MESSAGES, messages)
    if rows is None or len(rows) != G:
        return [(None, None)] * G
    said = [[one for one in row if one.role == "assistant"] for row in rows]
    return [
        (len(row), sum(len(m.tool_calls) for m in row if isinstance(m.tool_calls, list)))
        for row in said
    ]


def _texts(columns: Columns, name: str, G: int) -> list[str | None]:
    values = _decoded(_LIST, columns.rest.get(name))
    if values is None or len(values) != G:
        return [None] * G
    return [None if one is None else str(one)[:100] for one in values]


def _count(own: Any, counted: int | None) -> int | None:
    return own if isinstance(own, int) else counted


def _decoded(decoder: msgspec.json.Decoder[Any], data: bytes | None) -> Any:
    """The value, which was checked at intake; None if it is absent or of another form."""
    if data is None:
        return None
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError):
        return None

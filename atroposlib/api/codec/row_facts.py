"""Facts of the rows of a group for the index of rollouts, computed where its columns are in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from math import isfinite
from typing import Any, NamedTuple

import msgspec
import numpy as np

from atroposlib.wire.group_arrays import Columns, GroupArrays
from atroposlib.wire.numbers import finite_float, int64
from atroposlib.wire.safetensors import Array

SUMMED_TOKENS = 2**18  # tokens summed at once: their copy in a wider type takes two megabytes


class RowFact(NamedTuple):
    """Facts of a row; None: unknown. The names are columns of the index."""

    reward: float
    n_tokens: int
    n_trained: int
    version_min: int | None  # oldest version of the sampled tokens
    version_max: int | None
    logprob_mean: float | None  # mean over the trained tokens, at the sampler
    advantage: float | None  # mean over the trained tokens
    turns: int | None  # messages of the assistant
    tool_calls: int | None
    finish_reason: str | None
    outcome: str | None
    generate_s: float | None


class GroupFacts(NamedTuple):
    item: str | None
    group_id: str | None
    rows: tuple[RowFact, ...]


class _Turn(msgspec.Struct):
    """Fields of a message that count; msgspec skips the rest without making objects."""

    role: Any = None
    tool_calls: Any = None


_MESSAGES = msgspec.json.Decoder(list[list[_Turn]])
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_LIST = msgspec.json.Decoder(list[Any])


def facts_of(group: GroupArrays) -> GroupFacts:
    head = group.head
    G = len(head.seq_lens)
    metadata = _value_in(_OBJECT, head.rest.get("metadata")) or {}
    turns, calls = _turns(head.rest.get("messages"), G)
    generate_s: list[float | None] = [None] * G
    own = metadata.get("rows")
    if isinstance(own, list) and len(own) == G:
        for g, row in enumerate(own):
            if isinstance(row, dict):
                turns[g] = _count(row.get("turns"), turns[g])
                calls[g] = _count(row.get("tool_calls"), calls[g])
                generate_s[g] = _seconds(row.get("timings"))
    item = metadata.get("item", metadata.get("item_id"))
    sums = _RowSums(group)
    low, high = sums.versions()
    # A map of columns: a call of the class for each row costs four times as much.
    rows = zip(
        head.scores.tolist(),
        head.seq_lens.tolist(),
        sums.n_trained,
        low,
        high,
        sums.means("inference_logprobs"),
        sums.means("advantages"),
        turns,
        calls,
        _texts(head, "finish_reasons", G),
        _texts(head, "outcomes", G),
        generate_s,
    )
    named = None if item is None else str(item)[:200]
    facts = tuple(map(partial(tuple.__new__, RowFact), rows))
    return GroupFacts(named, head.group_id, facts)


class _RowSums:
    """Sums and extremes of each row. It holds a byte per token: which are trained."""

    def __init__(self, group: GroupArrays) -> None:
        self._group = group
        self._ends = np.cumsum(group.head.seq_lens)
        self._trained: Array = np.empty(int(self._ends[-1]), np.bool_)
        at = 0
        for mask in group.chunks("mask"):
            self._trained[at : at + len(mask)] = mask
            at += len(mask)
        counts = self._by_row([self._trained.view(np.uint8)], np.add, 0)
        self.n_trained: list[int] = counts.tolist()

    def means(self, name: str) -> list[float | None]:
        """Mean of the trained tokens of each row; None: no token, or an overflow."""
        if name not in self._group.head.floats:
            return [None] * len(self._ends)
        with np.errstate(over="ignore", invalid="ignore"):
            sums = self._by_row(self._of_trained(name), np.add, 0.0).tolist()
        return [
            total / count if count and isfinite(total) else None
            for total, count in zip(sums, self.n_trained)
        ]

    def versions(self) -> tuple[list[int | None], list[int | None]]:
        """Oldest and newest version of each row; -1 stands for tokens that were not sampled."""
        if self._group.head.versions is None:
            return [None] * len(self._ends), [None] * len(self._ends)
        highest: list[int] = self._by_row(
            self._group.chunks("versions"), np.maximum, -1
        ).tolist()
        unsigned = (
            chunk.astype(np.int32, copy=False).view(np.uint32)  # -1 is the largest
            for chunk in self._group.chunks("versions")
        )
        lowest: list[int] = self._by_row(unsigned, np.minimum, 2**32 - 1).tolist()
        oldest: list[int | None] = [
            low if high >= 0 else None for low, high in zip(lowest, highest)
        ]
        newest: list[int | None] = [high if high >= 0 else None for high in highest]
        return oldest, newest

    def _of_trained(self, name: str) -> Iterator[Array]:
        at = 0
        for values in self._group.chunks(name):
            yield np.where(self._trained[at : at + len(values)], values, 0.0)
            at += len(values)

    def _by_row(self, chunks: Iterable[Array], combine: np.ufunc, start: float) -> Array:
        """``combine`` over the values of each row."""
        result = np.full(len(self._ends), start)
        at = 0
        for chunk in chunks:
            for begin in range(0, len(chunk), SUMMED_TOKENS):
                values = chunk[begin : begin + SUMMED_TOKENS]
                bounds = (at, at + len(values) - 1)
                first, last = np.searchsorted(self._ends, bounds, side="right").tolist()
                begins = np.concatenate([[0], self._ends[first:last] - at])
                part = combine.reduceat(values, begins, dtype=result.dtype)
                result[first : last + 1] = combine(result[first : last + 1], part)
                at += len(values)
        return result


def _turns(messages: bytes | None, G: int) -> tuple[list[int | None], list[int | None]]:
    """Messages of the assistant, and their tool calls, of each row."""
    rows = _value_in(_MESSAGES, messages)
    if rows is None or len(rows) != G:
        return [None] * G, [None] * G
    replies = [[message for message in row if message.role == "assistant"] for row in rows]
    calls: list[int | None] = [
        sum(len(reply.tool_calls) for reply in row if isinstance(reply.tool_calls, list))
        for row in replies
    ]
    turns: list[int | None] = [len(row) for row in replies]
    return turns, calls


def _texts(head: Columns, name: str, G: int) -> list[str | None]:
    values = _value_in(_LIST, head.rest.get(name))
    if values is None or len(values) != G:
        return [None] * G
    return [None if value is None else str(value)[:100] for value in values]


def _count(own: Any, counted: int | None) -> int | None:
    own = int64(own)
    return counted if own is None else own


def _seconds(timings: Any) -> float | None:
    generate = timings.get("generate") if isinstance(timings, dict) else None
    return finite_float(generate)


def _value_in(decoder: msgspec.json.Decoder[Any], data: bytes | None) -> Any:
    """The value, which was checked at intake; None if it is absent or of another form."""
    if data is None:
        return None
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError):
        return None

"""Facts of the rows of a group for the index of rollouts, computed where its columns are at hand."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from math import isfinite
from typing import Any, NamedTuple

import msgspec
import numpy as np

from atroposlib.wire.columns import Columns
from atroposlib.wire.messages import MASKED
from atroposlib.wire.numbers import finite, whole
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


def facts_of(columns: Columns, numbers: Sequence[RowNumbers] = ()) -> GroupFacts:
    """The facts of a checked group; ``numbers`` of its rows if its token arrays are not held."""
    G = len(columns.seq_lens)
    metadata = _decoded(_OBJECT, columns.rest.get("metadata")) or {}
    turns, calls = _turns(columns.rest.get("messages"), G)
    generate_s: list[float | None] = [None] * G
    own = metadata.get("rows")
    if isinstance(own, list) and len(own) == G:
        for g, row in enumerate(own):
            if isinstance(row, dict):
                turns[g] = _count(row.get("turns"), turns[g])
                calls[g] = _count(row.get("tool_calls"), calls[g])
                generate_s[g] = _seconds(row.get("timings"))
    item = metadata.get("item", metadata.get("item_id"))
    # A map of columns: a call of the class for each row costs four times as much.
    rows = zip(
        columns.scores.tolist(),
        columns.seq_lens.tolist(),
        *zip(*(numbers or _numbers(columns))),
        turns,
        calls,
        _texts(columns, "finish_reasons", G),
        _texts(columns, "outcomes", G),
        generate_s,
    )
    named = None if item is None else str(item)[:200]
    return GroupFacts(
        named, columns.group_id, tuple(map(partial(tuple.__new__, RowFact), rows))
    )


class NumbersInChunks:
    """The numbers of each row of a group that is read in chunks, member by member.

    It holds one byte per token: which tokens are trained. So masks come before other members.
    """

    def __init__(self) -> None:
        self._trained: list[Array] = []  # bools of the masks so far
        self._sums: dict[tuple[str, int], float] = {}  # by member and row
        self.low: dict[int, int] = {}  # oldest version by row, of rows with sampled tokens
        self._high: dict[int, int] = {}

    def add(self, name: str, row: int, at: int, values: Array) -> None:
        """Take a chunk of a row; ``at`` is its place in the member."""
        if name == "masks":
            self._trained.append(values != MASKED)
            self._count(name, row, int(np.count_nonzero(self._trained[-1])))
        elif name == "versions" and len(known := values[values >= 0]):
            self.low[row] = min(self.low.get(row, INT32_MAX), int(known.min()))
            self._high[row] = max(self._high.get(row, 0), int(known.max()))
        elif name in ("inference_logprobs", "advantages"):
            if len(self._trained) > 1:
                self._trained = [np.concatenate(self._trained)]
            here = self._trained[0][at : at + len(values)]
            if len(here) == len(values):  # else the member does not fit the tokens
                with np.errstate(over="ignore", invalid="ignore"):
                    self._count(name, row, float(values[here].sum()))

    def _count(self, name: str, row: int, amount: float) -> None:
        self._sums[name, row] = self._sums.get((name, row), 0) + amount

    def trained(self, row: int) -> int:
        return int(self._sums.get(("masks", row), 0))

    def numbers(self, names: Collection[str], G: int) -> list[RowNumbers]:
        """As of :func:`facts_of`; ``names`` are the members that fit the tokens."""

        def mean(name: str, row: int) -> float | None:
            known, total = (
                name in names and self.trained(row),
                self._sums.get((name, row), 0.0),
            )
            return total / known if known and isfinite(total) else None

        return [
            (
                *(self.trained(g), self.low.get(g), self._high.get(g)),
                *(mean("inference_logprobs", g), mean("advantages", g)),
            )
            for g in range(G)
        ]


INT32_MAX = 2**31 - 1
# (n_trained, version_min, version_max, logprob_mean, advantage) of one row
RowNumbers = tuple[int | None, int | None, int | None, float | None, float | None]


def _numbers(columns: Columns) -> list[RowNumbers]:
    ends = np.cumsum(columns.seq_lens).tolist()
    starts = [0, *ends[:-1]]
    spans = list(zip(starts, ends))
    trained = columns.trained
    counts = np.add.reduceat(trained, starts, dtype=np.int32).tolist()
    low, high = _versions(columns.versions, starts)
    weights = trained.astype(np.float32)  # (T,)
    logprobs = _means(columns.floats.get("inference_logprobs"), weights, spans, counts)
    advantages = _means(columns.floats.get("advantages"), weights, spans, counts)
    return list(zip(counts, low, high, logprobs, advantages))


def _means(
    values: Array | None, weights: Array, spans: Sequence[tuple[int, int]], counts: list[int]
) -> list[float | None]:
    """Mean of each row's values over its trained tokens; None: no token, or an overflow."""
    if values is None:
        return [None] * len(spans)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = [float(np.dot(values[start:end], weights[start:end])) for start, end in spans]
    return [
        total / count if count and isfinite(total) else None
        for total, count in zip(sums, counts)
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


def _turns(messages: bytes | None, G: int) -> tuple[list[int | None], list[int | None]]:
    """Messages of the assistant, and their tool calls, of each row."""
    rows = _decoded(_MESSAGES, messages)
    if rows is None or len(rows) != G:
        return [None] * G, [None] * G
    said = [[one for one in row if one.role == "assistant"] for row in rows]
    calls = [[m.tool_calls for m in row if isinstance(m.tool_calls, list)] for row in said]
    return [len(row) for row in said], [sum(map(len, row)) for row in calls]


def _texts(columns: Columns, name: str, G: int) -> list[str | None]:
    values = _decoded(_LIST, columns.rest.get(name))
    if values is None or len(values) != G:
        return [None] * G
    return [None if one is None else str(one)[:100] for one in values]


def _count(own: Any, counted: int | None) -> int | None:
    own = whole(own)
    return counted if own is None else own


def _seconds(timings: Any) -> float | None:
    generate = timings.get("generate") if isinstance(timings, dict) else None
    return finite(generate)


def _decoded(decoder: msgspec.json.Decoder[Any], data: bytes | None) -> Any:
    """The value, which was checked at intake; None if it is absent or of another form."""
    if data is None:
        return None
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError):
        return None

"""A scored group as flat typed arrays: the form in which it is checked and converted.

    ScoredData <-> Columns <-> safetensors        JSON -> Columns

A list of 10^5 Python numbers costs milliseconds to look at, an array microseconds. Rows
lie one behind the other and ``seq_lens`` tells them apart. What is not numeric stays JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from atroposlib.errors import InvalidGroup
from atroposlib.wire.messages import (
    MASKED,
    MASKED_LOGPROB,
    MASKED_VERSION,
    PER_SEQUENCE,
    ScoredData,
    validate_messages,
)

Array = NDArray[Any]

FLOATS = ("inference_logprobs", "ref_logprobs", "advantages")  # one per token
REST = (  # everything that is not numeric; advantages only if they do not fit the tokens
    "messages",
    "generation_params",
    "overrides",
    "group_overrides",
    "images",
    "finish_reasons",
    "outcomes",
    "metadata",
    "marks",
    "advantages",
)
MAX_ROWS = 4096
INT32 = np.iinfo(np.int32)
_DECODERS = {
    one.name: msgspec.json.Decoder(one.type) for one in msgspec.structs.fields(ScoredData)
}


@dataclass(frozen=True, slots=True)
class Distilled:
    """A teacher's choices; position t of the flat tokens has the next ``counts[t]``."""

    counts: Array  # (T,)
    token_ids: Array | None = None  # (sum of counts,)
    logprobs: Array | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """One group; G sequences with T tokens in all."""

    seq_lens: Array  # (G,)
    tokens: Array  # (T,) ints
    masks: Array  # (T,) ints, -100 or the label
    scores: Array  # (G,) float64
    floats: dict[str, Array] = field(default_factory=dict)  # of FLOATS, each (T,)
    versions: Array | None = None  # (T,)
    distilled: Distilled | None = None
    env_id: int | None = None
    group_id: str | None = None
    idempotency_key: str | None = None
    rest: dict[str, bytes] = field(default_factory=dict)  # of REST, each a JSON value

    @property
    def n_tokens(self) -> int:
        """Trained positions."""
        return int(np.count_nonzero(self.masks != MASKED))

    @property
    def version(self) -> int | None:
        """Oldest policy version that sampled one of its tokens."""
        if self.versions is None:
            return None
        known = self.versions[self.versions != MASKED_VERSION]
        return int(known.min()) if len(known) else None

    @property
    def declared_size(self) -> int | None:
        """``group_overrides["group_size"]``, if it is an int."""
        overrides = self.rest_value("group_overrides") or {}
        size = overrides.get("group_size")
        return size if type(size) is int else None

    def rest_value(self, name: str) -> Any:
        """A non-numeric field, decoded; None if the group lacks it.

        Raises:
            InvalidGroup: it is not what the record says.
        """
        try:
            return _DECODERS[name].decode(self.rest[name]) if name in self.rest else None
        except RecursionError as error:
            raise InvalidGroup(name, "", "nested too deeply") from error
        except ValueError as error:  # msgspec's, or bytes that are not UTF-8
            raise InvalidGroup(name, "", without_values(str(error))) from error


def without_values(problem: str) -> str:
    """What msgspec says about an input, less the one message that quotes it."""
    problem = re.sub(
        r"Invalid enum value .*?(?= - at `\$|$)", "Not an allowed value", problem, 1, re.S
    )
    return problem[:500]


def stale_masked(columns: Columns, min_version: int) -> Columns:
    """The group with tokens of versions before ``min_version`` no longer trained on.

    A group that names no version at all is masked whole: its caller knows it to be older.
    """
    if columns.versions is None or columns.version is None:
        stale = np.ones(len(columns.tokens), np.bool_)
    else:
        stale = (columns.versions != MASKED_VERSION) & (columns.versions < min_version)
    masks = np.where(stale, MASKED, columns.masks)
    versions = columns.versions
    if versions is not None:
        versions = np.where(stale, MASKED_VERSION, versions)
    floats = dict(columns.floats)
    if (logprobs := floats.get("inference_logprobs")) is not None:
        masked = np.where(stale, MASKED_LOGPROB, logprobs)
        floats["inference_logprobs"] = masked.astype(logprobs.dtype)
    return replace(columns, floats=floats, masks=masks, versions=versions)


def fits(lengths: Iterable[int], seq_lens: Array) -> bool:
    """Whether rows of these lengths lie over the tokens one to one."""
    return bool(list(lengths) == seq_lens.tolist())


def joined_choices(
    token_ids: tuple[Array, Array] | None, logprobs: tuple[Array, Array] | None
) -> Distilled | None:
    """The two distill fields, each (counts, values), as one."""
    first = token_ids or logprobs
    if first is None:
        return None
    if token_ids and logprobs and not np.array_equal(token_ids[0], logprobs[0]):
        raise InvalidGroup("distill_logprobs", "", "not one logprob per distilled token")
    return Distilled(
        first[0], token_ids[1] if token_ids else None, logprobs[1] if logprobs else None
    )


# --- checks ---------------------------------------------------------------------------


def check(columns: Columns) -> None:
    """Refuse a group that could not be trained on, as ``wire.validate_group`` does.

    Raises:
        InvalidGroup: names the field and the index, never the value.
    """
    rows, total = len(columns.seq_lens), len(columns.tokens)
    if not 1 <= rows <= MAX_ROWS:
        raise InvalidGroup("tokens", "", f"a group has 1 to {MAX_ROWS} rows, not {rows}")
    place = _Place(columns.seq_lens)
    empty = np.flatnonzero(columns.seq_lens < 1)
    if len(empty):
        raise InvalidGroup("tokens", f"[{empty[0]}]", "an empty sequence cannot be trained on")
    if int(columns.seq_lens.sum(dtype=np.int64)) != total:
        raise InvalidGroup("tokens", "", "seq_lens do not add up to the tokens")
    _in_range("tokens", columns.tokens, 0, place, "token ids lie in 0 .. 2^31 - 1")
    _in_range("masks", columns.masks, INT32.min, place, "a mask is -100 or a label in int32")
    _require_length("scores", columns.scores, rows)
    for g in np.flatnonzero(~np.isfinite(columns.scores)):
        raise InvalidGroup("scores", f"[{g}]", "not a finite number")
    for name, values in columns.floats.items():
        _require_length(name, values, total)
        _finite(name, values, place)
    if (versions := columns.versions) is not None:
        problem = "versions lie in 0 .. 2^31 - 1, or are -1"
        _in_range("versions", versions, MASKED_VERSION, place, problem)
    _check_distilled(columns.distilled, total, place)
    _check_rest(columns, rows)


class _Place:
    """Says ``[g][t]`` for a position of the flat arrays."""

    def __init__(self, seq_lens: Array) -> None:
        self._ends = np.cumsum(seq_lens)

    def __call__(self, flat: int) -> str:
        g = int(np.searchsorted(self._ends, flat, side="right"))
        return f"[{g}][{flat - (int(self._ends[g - 1]) if g else 0)}]"


def _require_length(name: str, values: Array, length: int) -> None:
    if len(values) != length:
        raise InvalidGroup(name, "", f"{len(values)} entries where {length} are expected")


def _in_range(name: str, values: Array, low: int, place: _Place, problem: str) -> None:
    _require_length(name, values, int(place._ends[-1]))
    if int(values.min()) < low or int(values.max()) > INT32.max:
        bad = np.flatnonzero((values < low) | (values > INT32.max))
        raise InvalidGroup(name, place(int(bad[0])), problem)


def _finite(name: str, values: Array, place: _Place) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        raise InvalidGroup(name, place(int(finite.argmin())), "not a finite number")


def _check_distilled(distilled: Distilled | None, total: int, place: _Place) -> None:
    if distilled is None:
        return
    counts = distilled.counts
    _require_length("distill_token_ids", counts, total)
    if len(counts) and int(counts.min()) < 0:
        raise InvalidGroup(
            "distill_token_ids", place(int(counts.argmin())), "a negative count"
        )
    choices = int(counts.sum(dtype=np.int64))
    if (ids := distilled.token_ids) is not None:
        _require_length("distill_token_ids", ids, choices)
        if len(ids) and not INT32.min <= int(ids.min()) <= int(ids.max()) <= INT32.max:
            raise InvalidGroup("distill_token_ids", "", "not an int32")
    if (logprobs := distilled.logprobs) is not None:
        _require_length("distill_logprobs", logprobs, choices)
        finite = np.isfinite(logprobs)
        if not finite.all():
            t = np.searchsorted(np.cumsum(counts), int(finite.argmin()), side="right")
            raise InvalidGroup("distill_logprobs", place(int(t)), "not a finite number")


def _check_rest(columns: Columns, rows: int) -> None:
    for name in columns.rest:
        value = columns.rest_value(name)
        if name in PER_SEQUENCE and value is not None and len(value) != rows:
            raise InvalidGroup(name, "", f"{len(value)} entries where {rows} are expected")
        if name == "messages":
            validate_messages(value)

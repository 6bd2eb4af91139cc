"""A scored group as flat typed arrays (columns): checks and conversions.

    ScoredData <-> Columns <-> safetensors        JSON -> Columns

A check of 10^5 Python numbers takes milliseconds, of an array microseconds. Rows are
concatenated, with their lengths in ``seq_lens``. Non-numeric fields stay JSON.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sized
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from atroposlib.errors import InvalidGroup
from atroposlib.wire.images import IMAGES, LARGE_REST, check_images
from atroposlib.wire.messages import (
    MASKED,
    MASKED_LOGPROB,
    MASKED_VERSION,
    MAX_LOGPROB,
    PER_SEQUENCE,
    ScoredData,
    validate_messages,
    validate_sampling,
)
from atroposlib.wire.routing import checked, stacked, unstacked
from atroposlib.wire.safetensors import Array

MAX_ROWS = 4096
MAX_TOKENS = 2**23  # of a group
INT32 = np.iinfo(np.int32)
FLOATS = ("inference_logprobs", "ref_logprobs", "advantages")  # one per token
REST = (  # non-numeric fields; advantages only if they do not fit the tokens
    *("messages", "generation_params", "overrides", "group_overrides", "images", "sampling"),
    *("finish_reasons", "outcomes", "metadata", "marks", "advantages"),
)
_DECODERS = {
    one.name: msgspec.json.Decoder(one.type) for one in msgspec.structs.fields(ScoredData)
}


@dataclass(frozen=True, slots=True)
class Distilled:
    """Top choices of a teacher; ``counts[t]`` entries belong to position t."""

    counts: Array  # (T,)
    token_ids: Array | None = None  # (sum of counts,)
    logprobs: Array | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """One group: G sequences with T tokens in total."""

    seq_lens: Array  # (G,)
    tokens: Array  # (T,) ints
    trained: Array  # (T,) bools
    scores: Array  # (G,) float64
    labels: Array | None = None  # (T,) ints, -100 where not trained; None: the tokens
    floats: dict[str, Array] = field(default_factory=dict)  # of FLOATS, each (T,)
    versions: Array | None = None  # (T,)
    distilled: Distilled | None = None
    routed_experts: Array | None = None  # (T, L, K), see wire.routing
    env_id: int | None = None
    group_id: str | None = None
    idempotency_key: str | None = None
    incarnation: int | None = None
    rest: dict[str, bytes] = field(default_factory=dict)  # of REST, each a JSON value

    @property
    def masks(self) -> Array:
        """(T,) ints, -100 or the label."""
        if self.labels is not None:
            return self.labels
        return np.where(self.trained, self.tokens, np.int32(MASKED))

    @property
    def n_tokens(self) -> int:
        """Trained positions."""
        return int(np.count_nonzero(self.trained))

    @property
    def version(self) -> int | None:
        """Oldest policy version of the sampled tokens; None without versions."""
        if self.versions is None:
            return None
        known = self.versions != MASKED_VERSION
        oldest = int(np.min(self.versions, where=known, initial=INT32.max))
        return oldest if oldest < INT32.max or known.any() else None

    @property
    def declared_size(self) -> int | None:
        """``group_overrides["group_size"]``, if it is an int."""
        overrides = self.rest_value("group_overrides") or {}
        size = overrides.get("group_size")
        return size if type(size) is int else None

    def rest_value(self, name: str) -> Any:
        """A non-numeric field, decoded; None if absent. Raises InvalidGroup: another type."""
        try:
            return _DECODERS[name].decode(self.rest[name]) if name in self.rest else None
        except RecursionError as error:
            raise InvalidGroup(name, "", "nested too deeply") from error
        except ValueError as error:  # msgspec's, or bytes that are not UTF-8
            raise InvalidGroup(name, "", without_values(str(error))) from error


def without_values(problem: str) -> str:
    """The error message of msgspec without quoted input, at most 500 characters."""
    problem = re.sub(
        r"Invalid enum value .*?(?= - at `\$|$)", "Not an allowed value", problem, 1, re.S
    )
    return problem[:500]


def fits(lengths: Iterable[int], seq_lens: Array) -> bool:
    """Whether rows of these lengths match the rows of tokens."""
    return bool(list(lengths) == seq_lens.tolist())


def joined_choices(
    token_ids: tuple[Array, Array] | None, logprobs: tuple[Array, Array] | None
) -> Distilled | None:
    """Join the two distill fields, each (counts, values)."""
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
    """Raise InvalidGroup, with field and index but no value, if it cannot be trained on."""
    check_lengths(columns.seq_lens)
    rows, total = len(columns.seq_lens), len(columns.tokens)
    place = _Place(columns.seq_lens)
    if int(columns.seq_lens.sum(dtype=np.int64)) != total:
        raise InvalidGroup("tokens", "", "seq_lens do not add up to the tokens")
    _in_range("tokens", columns.tokens, 0, place, "token ids lie in 0 .. 2^31 - 1")
    if (labels := columns.labels) is not None:
        _in_range("masks", labels, INT32.min, place, "a mask is -100 or a label in int32")
    _require_length("scores", columns.scores, rows)
    for g in np.flatnonzero(~np.isfinite(columns.scores)):
        raise InvalidGroup("scores", f"[{g}]", "not a finite number")
    for name, values in columns.floats.items():
        _require_length(name, values, total)
        _finite(name, values, place)
        if name == "inference_logprobs" and labels is not None:
            _check_probabilities(values, labels, place)
    if (versions := columns.versions) is not None:
        problem = "versions lie in 0 .. 2^31 - 1, or are -1"
        _in_range("versions", versions, MASKED_VERSION, place, problem)
    _check_distilled(columns.distilled, total, place)
    if columns.routed_experts is not None:
        _require_length("routed_experts", checked(columns.routed_experts), total)
    check_rest(columns)


def check_lengths(seq_lens: Array) -> None:
    """Reject a group with too many or empty rows, or with too many tokens."""
    if not 1 <= len(seq_lens) <= MAX_ROWS:
        problem = f"a group has 1 to {MAX_ROWS} rows, not {len(seq_lens)}"
        raise InvalidGroup("tokens", "", problem)
    for g in np.flatnonzero(seq_lens < 1):
        raise InvalidGroup("tokens", f"[{g}]", "an empty sequence cannot be trained on")
    if (total := int(seq_lens.sum(dtype=np.int64))) > MAX_TOKENS:
        problem = f"a group has at most {MAX_TOKENS} tokens, not {total}"
        raise InvalidGroup("tokens", "", problem)


class _Place:
    """The index ``[g][t]`` of a position of the flat arrays."""

    def __init__(self, seq_lens: Array) -> None:
        self._ends = np.cumsum(seq_lens)

    def __call__(self, flat: int) -> str:
        g = int(np.searchsorted(self._ends, flat, side="right"))
        return f"[{g}][{flat - (int(self._ends[g - 1]) if g else 0)}]"


def _require_length(name: str, values: Sized, length: int, index: str = "") -> None:
    if len(values) != length:
        raise InvalidGroup(name, index, f"{len(values)} entries where {length} are expected")


def _in_range(name: str, values: Array, low: int, place: _Place, problem: str) -> None:
    _require_length(name, values, int(place._ends[-1]))
    if int(values.min()) < low or int(values.max()) > INT32.max:
        bad = np.flatnonzero((values < low) | (values > INT32.max))
        raise InvalidGroup(name, place(int(bad[0])), problem)


def _finite(name: str, values: Array, place: _Place) -> None:
    finite = np.isfinite(values)
    if not finite.all():
        raise InvalidGroup(name, place(int(finite.argmin())), "not a finite number")


def _check_probabilities(logprobs: Array, labels: Array, place: _Place) -> None:
    """Reject a logprob above 0 at a trained token; MASKED_LOGPROB pads rows of old clients."""
    above = (logprobs > MAX_LOGPROB) & (logprobs != MASKED_LOGPROB) & (labels != MASKED)
    if above.any():
        raise InvalidGroup("inference_logprobs", place(int(above.argmax())), "above 0")


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

    def place_of(choice: np.intp) -> str:
        return place(int(np.searchsorted(np.cumsum(counts), choice, side="right")))

    if (ids := distilled.token_ids) is not None:
        _require_length("distill_token_ids", ids, choices)
        for bad in np.flatnonzero((ids < INT32.min) | (ids > INT32.max)):
            raise InvalidGroup("distill_token_ids", place_of(bad), "not an int32")
    if (logprobs := distilled.logprobs) is not None:
        _require_length("distill_logprobs", logprobs, choices)
        for bad in np.flatnonzero(~np.isfinite(logprobs)):
            raise InvalidGroup("distill_logprobs", place_of(bad), "not a finite number")


def check_rest(columns: Columns) -> None:
    """Reject non-numeric fields of another type or length than those of the record."""
    rows = len(columns.seq_lens)
    for name, text in columns.rest.items():
        if name == IMAGES and len(text) > LARGE_REST:
            check_images(text)
            continue
        value = columns.rest_value(name)
        if name in PER_SEQUENCE and value is not None:
            _require_length(name, value, rows)
        if name == "messages":
            validate_messages(value)
        if name == "sampling":
            validate_sampling(value or [], columns.seq_lens.tolist())


# --- conversion of records ------------------------------------------------------------


def from_group(group: ScoredData) -> Columns:
    """Checked columns of a record.

    Raises:
        InvalidGroup: names the field and the index, never the value.
    """
    seq_lens = np.array([len(row) for row in group.tokens], np.int64)
    check_lengths(seq_lens)
    tokens = _flat("tokens", group.tokens, seq_lens, np.int64)
    masks = _flat("masks", group.masks, seq_lens, np.int64)
    floats = {}
    rest = {name: getattr(group, name) for name in REST}
    for name in FLOATS:
        rows = getattr(group, name)
        if rows is not None and (name != "advantages" or fits(map(len, rows), seq_lens)):
            floats[name] = _flat(name, rows, seq_lens, np.float64)
            rest[name] = None
    versions = group.versions
    columns = Columns(
        seq_lens=seq_lens,
        tokens=tokens,
        trained=masks != MASKED,
        labels=masks,
        scores=_packed("scores", [("", group.scores)], np.float64),
        floats=floats,
        versions=None if versions is None else _flat("versions", versions, seq_lens, np.int64),
        distilled=_distilled(group, seq_lens),
        routed_experts=(
            None if (one := group.routed_experts) is None else stacked(one, seq_lens)
        ),
        env_id=group.env_id,
        group_id=group.group_id,
        idempotency_key=group.idempotency_key,
        incarnation=group.incarnation,
        rest={name: _encoded(name, one) for name, one in rest.items() if one is not None},
    )
    check(columns)
    return columns


def to_group(columns: Columns) -> ScoredData:
    """The record of checked columns."""
    distilled = columns.distilled or Distilled(np.empty(0))
    group = ScoredData(
        tokens=split_rows(columns.tokens.tolist(), columns.seq_lens),
        masks=split_rows(columns.masks.tolist(), columns.seq_lens),
        scores=columns.scores.tolist(),
        env_id=columns.env_id,
        group_id=columns.group_id,
        idempotency_key=columns.idempotency_key,
        incarnation=columns.incarnation,
        distill_token_ids=_choices(distilled.token_ids, distilled.counts, columns.seq_lens),
        distill_logprobs=_choices(distilled.logprobs, distilled.counts, columns.seq_lens),
    )
    if columns.routed_experts is not None:
        group.routed_experts = unstacked(columns.routed_experts, columns.seq_lens)
    for name, values in columns.floats.items():
        setattr(group, name, split_rows(values.tolist(), columns.seq_lens))
    if columns.versions is not None:
        group.versions = split_rows(columns.versions.tolist(), columns.seq_lens)
    for name in columns.rest:
        setattr(group, name, columns.rest_value(name))
    return group


def _require_rows(name: str, rows: list[Any], seq_lens: Array) -> None:
    """Require one row per sequence, and one entry per token."""
    _require_length(name, rows, len(seq_lens))
    for g, (row, length) in enumerate(zip(rows, seq_lens.tolist())):
        _require_length(name, row, length, f"[{g}]")


def _flat(name: str, rows: list[Any], seq_lens: Array, kind: type[Any]) -> Array:
    """Concatenated rows, each a list or an array."""
    _require_rows(name, rows, seq_lens)
    return _packed(name, ((f"[{g}]", row) for g, row in enumerate(rows)), kind)


def _packed(name: str, rows: Iterable[tuple[str, Any]], kind: type[Any]) -> Array:
    """Numbers of all (index, row), without truncation: floats among ids are rejected."""
    whole = kind is np.int64
    packed = array("q" if whole else "d")
    for index, row in rows:
        try:
            # Twice as fast as np.array, and as strict: it rejects floats among ids, text
            # among numbers, and numbers over 2^63.
            packed.fromlist(row if type(row) is list else _as_list(row))
        except (TypeError, ValueError) as error:
            kinds = "ints" if whole else "numbers"
            raise InvalidGroup(name, index, f"not all are {kinds}") from error
        except OverflowError as error:
            raise InvalidGroup(name, index, "a number over 2^31 - 1") from error
    return np.frombuffer(packed, kind) if packed else np.empty(0, kind)


def _as_list(row: Any) -> list[Any]:
    """The Python numbers of an array; other sequences as a list."""
    values = row.tolist() if hasattr(row, "tolist") else list(row)
    return values if isinstance(values, list) else [values]


def _distilled(group: ScoredData, seq_lens: Array) -> Distilled | None:
    flat: dict[str, tuple[Array, Array]] = {}
    for name, kind in (("distill_token_ids", np.int64), ("distill_logprobs", np.float64)):
        if (rows := getattr(group, name)) is None:
            continue
        _require_rows(name, rows, seq_lens)
        positions = list(chain.from_iterable(rows))
        counts = np.array([len(one) for one in positions], np.int64)
        values = list(chain.from_iterable(positions))
        flat[name] = counts, _packed(name, [("", values)], kind)
    ids, logprobs = flat.get("distill_token_ids"), flat.get("distill_logprobs")
    if ids and logprobs:
        for bad in np.flatnonzero(ids[0] != logprobs[0]):
            problem = "not one logprob per distilled token"
            raise InvalidGroup("distill_logprobs", _Place(seq_lens)(int(bad)), problem)
    return joined_choices(ids, logprobs)


def split_rows(flat: list[Any], lengths: Array) -> list[Any]:
    """Slices of these lengths, in order."""
    ends = np.cumsum(lengths).tolist()
    return [flat[end - length : end] for end, length in zip(ends, lengths.tolist())]


def _choices(values: Array | None, counts: Array, seq_lens: Array) -> list[Any] | None:
    return (
        None if values is None else split_rows(split_rows(values.tolist(), counts), seq_lens)
    )


def _encoded(name: str, value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidGroup(name, "", "it cannot be written as JSON") from error

"""Checks of a group, and conversion between its record and flat typed arrays.

    ScoredData <-> Columns <-> safetensors        JSON -> GroupArrays -> safetensors

A check of 10^5 Python numbers takes milliseconds, of an array microseconds.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from atroposlib.errors import InvalidGroup
from atroposlib.wire.group_arrays import (
    FLOATS,
    INT32,
    MAX_ROWS,
    MAX_TOKENS,
    REST,
    Columns,
    Distilled,
    GroupArrays,
    Place,
    TakenNumbers,
    joined_choices,
    match_rows,
)
from atroposlib.wire.images import IMAGES, LARGE_IMAGES, check_images
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
from atroposlib.wire.routing import require_experts, stack, unstack
from atroposlib.wire.safetensors import Array

# --- checks ---------------------------------------------------------------------------

_RANGES = {
    "tokens": (0, "token ids lie in 0 .. 2^31 - 1"),
    "labels": (INT32.min, "a mask is -100 or a label in int32"),
    "versions": (MASKED_VERSION, "versions lie in 0 .. 2^31 - 1, or are -1"),
}
_JSON_NAMES = {"labels": "masks"}  # fields whose tensor has a different name


def require_trainable(group: GroupArrays) -> None:
    """Raise InvalidGroup, with field and index but no value, if the group cannot be trained on."""
    head = group.head
    check_lengths(head.seq_lens)
    rows, total = len(head.seq_lens), int(head.seq_lens.sum(dtype=np.int64))
    place = Place(head.seq_lens)
    require_entries("scores", len(head.scores), rows)
    for g in np.flatnonzero(~np.isfinite(head.scores)):
        raise InvalidGroup("scores", f"[{g}]", "not a finite number")
    present = head.arrays()
    if sum(map(len, group.chunks("tokens"))) != total:
        raise InvalidGroup("tokens", "", "seq_lens do not add up to the tokens")
    for name, (low, problem) in _RANGES.items():
        if name in present:
            field_name = _JSON_NAMES.get(name, name)
            _check_range(field_name, group.chunks(name), low, place, total, problem)
    for name in head.floats:
        _check_finite(name, group.chunks(name), place, total)
    if head.distilled is not None:
        _check_distilled(group, head.distilled, total, place)
    if head.routed_experts is not None:
        require_experts(head.routed_experts)
        length = sum(map(len, group.chunks("routed_experts")))
        require_entries("routed_experts", length, total)
    check_rest(head)


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


def require_entries(name: str, length: int, expected: int, index: str = "") -> None:
    if length != expected:
        raise InvalidGroup(name, index, f"{length} entries where {expected} are expected")


def _check_range(
    name: str,
    chunks: Iterable[Array],
    low: int,
    place: Callable[[int], str],
    total: int,
    problem: str,
) -> None:
    """Require ``total`` integers from ``low`` to 2^31 - 1."""
    at = 0
    for values in chunks:
        if len(values) and (int(values.min()) < low or int(values.max()) > INT32.max):
            bad = np.flatnonzero((values < low) | (values > INT32.max))
            raise InvalidGroup(name, place(at + int(bad[0])), problem)
        at += len(values)
    require_entries(name, at, total)


def _check_finite(
    name: str, chunks: Iterable[Array], place: Callable[[int], str], total: int
) -> None:
    """Require ``total`` finite numbers."""
    at = 0
    for values in chunks:
        finite = np.isfinite(values)
        if not finite.all():
            raise InvalidGroup(name, place(at + int(finite.argmin())), "not a finite number")
        at += len(values)
    require_entries(name, at, total)


def check_probabilities(group: GroupArrays) -> None:
    """Reject a logprob above 0 at a trained token; MASKED_LOGPROB pads rows of old clients."""
    if "inference_logprobs" not in group.head.floats:
        return
    trained, at = TakenNumbers(group.chunks("mask")), 0
    for logprobs in group.chunks("inference_logprobs"):
        above = (logprobs > MAX_LOGPROB) & (logprobs != MASKED_LOGPROB)
        above &= trained.take(len(logprobs)) != 0
        if above.any():
            index = Place(group.head.seq_lens)(at + int(above.argmax()))
            raise InvalidGroup("inference_logprobs", index, "above 0")
        at += len(logprobs)


def _check_distilled(
    group: GroupArrays, distilled: Distilled, total: int, place: Place
) -> None:
    counts = distilled.counts
    require_entries("distill_token_ids", len(counts), total)
    if len(counts) and int(counts.min()) < 0:
        raise InvalidGroup(
            "distill_token_ids", place(int(counts.argmin())), "a negative count"
        )
    choices = int(counts.sum(dtype=np.int64))

    def place_of(choice: int) -> str:
        return place(int(np.searchsorted(np.cumsum(counts), choice, side="right")))

    if distilled.token_ids is not None:
        ids = group.chunks("distill_token_ids")
        _check_range("distill_token_ids", ids, INT32.min, place_of, choices, "not an int32")
    if distilled.logprobs is not None:
        _check_finite("distill_logprobs", group.chunks("distill_logprobs"), place_of, choices)


def check_rest(columns: Columns) -> None:
    """Reject non-numeric fields whose type or length differs from the record."""
    rows = len(columns.seq_lens)
    for name, text in columns.rest.items():
        if name == IMAGES and len(text) > LARGE_IMAGES:
            check_images(text)
            continue
        value = columns.rest_value(name)
        if name in PER_SEQUENCE and value is not None:
            require_entries(name, len(value), rows)
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
        if rows is not None and (name != "advantages" or match_rows(map(len, rows), seq_lens)):
            floats[name] = _flat(name, rows, seq_lens, np.float64)
            rest[name] = None
    versions = group.versions
    plain = group.distill_token_ids is None and group.distill_logprobs is None
    columns = Columns(
        seq_lens=seq_lens,
        tokens=tokens,
        trained=masks != MASKED,
        labels=masks,
        scores=_packed_numbers("scores", [("", group.scores)], np.float64),
        floats=floats,
        versions=None if versions is None else _flat("versions", versions, seq_lens, np.int64),
        distilled=None if plain else _distilled_choices(group, seq_lens),
        routed_experts=(
            None if (experts := group.routed_experts) is None else stack(experts, seq_lens)
        ),
        env_id=group.env_id,
        group_id=group.group_id,
        idempotency_key=group.idempotency_key,
        incarnation=group.incarnation,
        rest={name: _json_of(name, part) for name, part in rest.items() if part is not None},
    )
    require_trainable(columns)
    check_probabilities(columns)
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
        group.routed_experts = unstack(columns.routed_experts, columns.seq_lens)
    for name, values in columns.floats.items():
        setattr(group, name, split_rows(values.tolist(), columns.seq_lens))
    if columns.versions is not None:
        group.versions = split_rows(columns.versions.tolist(), columns.seq_lens)
    for name in columns.rest:
        setattr(group, name, columns.rest_value(name))
    return group


def _require_rows(name: str, rows: list[Any], seq_lens: Array) -> None:
    """Require a row per sequence, and an entry per token."""
    require_entries(name, len(rows), len(seq_lens))
    for g, (row, length) in enumerate(zip(rows, seq_lens.tolist())):
        require_entries(name, len(row), length, f"[{g}]")


def _flat(name: str, rows: list[Any], seq_lens: Array, kind: type[Any]) -> Array:
    """Concatenated rows, each a list or an array."""
    _require_rows(name, rows, seq_lens)
    return _packed_numbers(name, ((f"[{g}]", row) for g, row in enumerate(rows)), kind)


def _packed_numbers(name: str, rows: Iterable[tuple[str, Any]], kind: type[Any]) -> Array:
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
    """The Python numbers of an array; any other sequence as a list."""
    values = row.tolist() if hasattr(row, "tolist") else list(row)
    return values if isinstance(values, list) else [values]


def _distilled_choices(group: ScoredData, seq_lens: Array) -> Distilled | None:
    flat: dict[str, tuple[Array, Array]] = {}
    for name, kind in (("distill_token_ids", np.int64), ("distill_logprobs", np.float64)):
        if (rows := getattr(group, name)) is None:
            continue
        _require_rows(name, rows, seq_lens)
        positions = list(chain.from_iterable(rows))
        counts = np.array([len(choices) for choices in positions], np.int64)
        values = list(chain.from_iterable(positions))
        flat[name] = counts, _packed_numbers(name, [("", values)], kind)
    ids, logprobs = flat.get("distill_token_ids"), flat.get("distill_logprobs")
    if ids and logprobs:
        for bad in np.flatnonzero(ids[0] != logprobs[0]):
            problem = "not one logprob per distilled token"
            raise InvalidGroup("distill_logprobs", Place(seq_lens)(int(bad)), problem)
    return joined_choices(ids, logprobs)


def split_rows(flat: list[Any], lengths: Array) -> list[Any]:
    """Slices of these lengths, in order."""
    ends = np.cumsum(lengths).tolist()
    return [flat[end - length : end] for end, length in zip(ends, lengths.tolist())]


def _choices(values: Array | None, counts: Array, seq_lens: Array) -> list[Any] | None:
    return (
        None if values is None else split_rows(split_rows(values.tolist(), counts), seq_lens)
    )


def _json_of(name: str, value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidGroup(name, "", "it cannot be written as JSON") from error

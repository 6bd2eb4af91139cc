"""The record as lists of rows, and the same record as flat typed arrays."""

from __future__ import annotations

from array import array
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from atroposlib.errors import InvalidGroup
from atroposlib.wire.columns import (
    FLOATS,
    REST,
    Array,
    Columns,
    Distilled,
    check,
    fits,
    joined_choices,
)
from atroposlib.wire.messages import ScoredData


def from_group(group: ScoredData) -> Columns:
    """The columns of a record, checked.

    Raises:
        InvalidGroup: names the field and the index, never the value.
    """
    seq_lens = np.array([len(row) for row in group.tokens], np.int64)
    tokens = _flat("tokens", group.tokens, seq_lens, np.int64)
    masks = _flat("masks", group.masks, seq_lens, np.int64)
    floats = {}
    rest = {name: getattr(group, name) for name in REST}
    for name in FLOATS:
        rows = getattr(group, name)
        if rows is not None and (name != "advantages" or _fits(rows, seq_lens)):
            floats[name] = _flat(name, rows, seq_lens, np.float64)
            rest[name] = None
    versions = group.versions
    columns = Columns(
        seq_lens=seq_lens,
        tokens=tokens,
        masks=masks,
        scores=_numbers("scores", group.scores, np.float64),
        floats=floats,
        versions=None if versions is None else _flat("versions", versions, seq_lens, np.int64),
        distilled=_distilled(group, seq_lens),
        env_id=group.env_id,
        group_id=group.group_id,
        idempotency_key=group.idempotency_key,
        rest={name: _encoded(name, one) for name, one in rest.items() if one is not None},
    )
    check(columns)
    return columns


def to_group(columns: Columns) -> ScoredData:
    """The record of checked columns."""
    distilled = columns.distilled or Distilled(np.empty(0))
    group = ScoredData(
        tokens=_rows(columns.tokens, columns.seq_lens),
        masks=_rows(columns.masks, columns.seq_lens),
        scores=columns.scores.tolist(),
        env_id=columns.env_id,
        group_id=columns.group_id,
        idempotency_key=columns.idempotency_key,
        distill_token_ids=_choices(distilled.token_ids, distilled.counts, columns.seq_lens),
        distill_logprobs=_choices(distilled.logprobs, distilled.counts, columns.seq_lens),
    )
    for name, values in columns.floats.items():
        setattr(group, name, _rows(values, columns.seq_lens))
    if columns.versions is not None:
        group.versions = _rows(columns.versions, columns.seq_lens)
    for name in columns.rest:
        setattr(group, name, columns.rest_value(name))
    return group


def _fits(rows: list[Any], seq_lens: Array) -> bool:
    return fits((len(row) for row in rows), seq_lens)


def _flat(name: str, rows: list[Any], seq_lens: Array, kind: type[Any]) -> Array:
    """The rows one behind the other, each a list or an array."""
    if len(rows) != len(seq_lens):
        raise InvalidGroup(name, "", f"{len(rows)} entries where {len(seq_lens)} are expected")
    whole = kind is np.int64
    packed = array("q" if whole else "d")
    for g, (row, length) in enumerate(zip(rows, seq_lens.tolist())):
        if len(row) != length:
            problem = f"{len(row)} entries where {length} are expected"
            raise InvalidGroup(name, f"[{g}]", problem)
        try:
            # Twice as fast as np.array, and as strict: a float where an id belongs, a word
            # where a number belongs and a number over 2^63 are refused.
            packed.fromlist(row if type(row) is list else _as_list(row))
        except (TypeError, ValueError) as error:
            kinds = "ints" if whole else "numbers"
            raise InvalidGroup(name, f"[{g}]", f"not all are {kinds}") from error
        except OverflowError as error:
            raise InvalidGroup(name, f"[{g}]", "a number over 2^31 - 1") from error
    return np.frombuffer(packed, kind) if packed else np.empty(0, kind)


def _as_list(row: Any) -> list[Any]:
    """An array's own numbers; other sequences as they are."""
    values = row.tolist() if hasattr(row, "tolist") else list(row)
    return values if isinstance(values, list) else [values]


def _numbers(name: str, values: list[Any], kind: type[Any]) -> Array:
    """Never by truncation: a float where an id belongs is refused."""
    try:
        array = np.array(values)
    except (ValueError, OverflowError) as error:
        raise InvalidGroup(name, "", "not numbers, or not one list of them") from error
    if not values:
        return np.empty(0, kind)
    wanted = "iu" if kind is np.int64 else "iuf"
    if array.ndim != 1 or array.dtype.kind not in wanted:
        raise InvalidGroup(
            name, "", f"not all are {'ints' if kind is np.int64 else 'numbers'}"
        )
    if array.dtype == np.uint64 and kind is np.int64:  # one is over 2^63: no id at all
        raise InvalidGroup(name, "", "a number over 2^31 - 1")
    return array.astype(kind, copy=False)


def _distilled(group: ScoredData, seq_lens: Array) -> Distilled | None:
    flat: dict[str, tuple[Array, Array]] = {}
    for name, kind in (("distill_token_ids", np.int64), ("distill_logprobs", np.float64)):
        if (rows := getattr(group, name)) is None:
            continue
        if not _fits(rows, seq_lens):
            raise InvalidGroup(name, "", "not one entry per token")
        positions = list(chain.from_iterable(rows))
        counts = np.array([len(one) for one in positions], np.int64)
        flat[name] = counts, _numbers(name, list(chain.from_iterable(positions)), kind)
    return joined_choices(flat.get("distill_token_ids"), flat.get("distill_logprobs"))


def _rows(values: Array, lengths: Array) -> list[Any]:
    flat = values.tolist()
    ends = np.cumsum(lengths).tolist()
    return [flat[end - length : end] for end, length in zip(ends, lengths.tolist())]


def _choices(values: Array | None, counts: Array, seq_lens: Array) -> list[Any] | None:
    if values is None:
        return None
    flat = _rows(values, counts)
    ends = np.cumsum(seq_lens).tolist()
    return [flat[end - length : end] for end, length in zip(ends, seq_lens.tolist())]


def _encoded(name: str, value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidGroup(name, "", "it cannot be written as JSON") from error

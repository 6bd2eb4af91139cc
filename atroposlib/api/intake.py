"""Bodies with scored groups: bytes in, checked groups with canonical bytes out. Pure.

Each group is encoded once here, with every key of the record present, and these bytes
are what the store keeps and the trainer gets: a batch is served without decoding it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import msgspec

from atroposlib.errors import InvalidGroup
from atroposlib.wire import MASKED_VERSION, ScoredData, validate_group

_ONE = msgspec.json.Decoder(ScoredData)
_MANY = msgspec.json.Decoder(list[ScoredData])
_MOST_DETAIL_CHARACTERS = 500
_LARGEST_VERSION = 2**31 - 1


class MalformedBody(ValueError):
    """The body is not JSON, or is nested deeper than any group is."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A checked group and the bytes under which it is kept."""

    group: ScoredData
    payload: bytes
    version: int | None  # oldest policy version that sampled one of its tokens


def read_group(body: bytes, key: str | None = None) -> Incoming:
    """The group of POST /scored_data; ``key`` is its Idempotency-Key header, if any.

    Raises:
        InvalidGroup: names field and index, never a value.
        MalformedBody: the body cannot be parsed at all.
    """
    group = _decode(body, _ONE, ScoredData)
    if key is not None and group.idempotency_key is None:
        group.idempotency_key = key
    return _checked(group, "")


def read_groups(body: bytes) -> list[Incoming]:
    """The groups of POST /scored_data_list.

    Raises:
        InvalidGroup: of the first group that is refused; the index of the list leads.
        MalformedBody: as for :func:`read_group`.
    """
    groups = _decode(body, _MANY, list[ScoredData])
    return [_checked(group, f"[{i}].") for i, group in enumerate(groups)]


def _checked(group: ScoredData, place: str) -> Incoming:
    try:
        validate_group(group)
    except InvalidGroup as error:
        raise InvalidGroup(place + error.field, error.index, error.problem) from error
    versions = [v for row in group.versions or [] for v in row if v != MASKED_VERSION]
    if versions and not 0 <= min(versions) <= max(versions) <= _LARGEST_VERSION:
        raise InvalidGroup(place + "versions", "", "versions lie in 0 .. 2^31 - 1, or are -1")
    return Incoming(group, msgspec.json.encode(group), min(versions, default=None))


def _decode(body: bytes, decoder: msgspec.json.Decoder[Any], kind: Any) -> Any:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        softened = _decode_softly(body, kind)
        if softened is None:
            raise InvalidGroup("body", "", str(error)[:_MOST_DETAIL_CHARACTERS]) from error
        return softened
    except RecursionError as error:
        raise MalformedBody("the body is nested too deeply") from error
    except ValueError as error:  # msgspec.DecodeError, or bytes that are not UTF-8
        place = _first_non_finite(body)
        if place is not None:
            raise InvalidGroup(place, "", "not a finite number") from error
        raise MalformedBody("the body is not valid JSON") from error


def _first_non_finite(body: bytes) -> str | None:
    """Where a NaN or Infinity stands: Python writes them, JSON has none."""
    try:
        pending = [("body", json.loads(body))]
    except (ValueError, RecursionError):
        return None
    while pending:
        place, value = pending.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return place
        if isinstance(value, dict):
            pending += [(f"{place}.{name}"[:200], one) for name, one in value.items()]
        if isinstance(value, list):
            pending += [(f"{place}[{i}]", one) for i, one in reversed(list(enumerate(value)))]
    return None


def _decode_softly(body: bytes, kind: Any) -> Any:
    """The original took bools as scores and whole floats as ids, and old environments
    drop a group that is answered 4xx: so these slips are understood. None: others are not.
    """
    try:
        return msgspec.convert(_softened(msgspec.json.decode(body)), kind)
    except (ValueError, RecursionError):
        return None


def _softened(value: Any) -> Any:
    """The same group or groups, with numbers of the wanted kind where that loses nothing."""
    if isinstance(value, list):
        return [_softened(one) for one in value]
    if not isinstance(value, dict):
        return value
    soft = dict(value)
    for name in ("tokens", "masks", "versions"):
        if name in soft:
            soft[name] = _whole(soft[name])
    if isinstance(soft.get("scores"), list):
        soft["scores"] = [float(s) if isinstance(s, bool) else s for s in soft["scores"]]
    return soft


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(one) for one in value]
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value

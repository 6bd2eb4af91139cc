"""Parser of JSON posts: typed arrays by :class:`JsonGroup`, or the full msgspec decoder.

The full decoder decides on bodies that the first parser refuses, unless the body is large. It
is lenient on purpose: environments of the original drop a group after a 4xx, so it accepts the
type errors that the original accepted. Both raise the errors of
:func:`atroposlib.api.codec.read_group`.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

from atroposlib.api.codec.formats import (
    ONE_LARGE,
    WHOLE_BYTES,
    Body,
    ParsedGroup,
    packed_group,
    parse_each,
    with_marks,
)
from atroposlib.api.codec.json_group import KEYS, MAX_OBJECTS, OPTIONAL_LISTS, JsonGroup
from atroposlib.api.codec.json_text import split_list
from atroposlib.errors import InvalidGroup
from atroposlib.wire import ScoredData
from atroposlib.wire.columns import check_probabilities, from_group, require_trainable
from atroposlib.wire.group_arrays import Columns, GroupArrays, without_values
from atroposlib.wire.packing import exact, with_floats
from atroposlib.wire.safetensors import MalformedBody

_ONE = msgspec.json.Decoder(ScoredData)
_MANY = msgspec.json.Decoder(list[ScoredData])
QUICK_BYTES = 256 * 2**10  # a larger body is parsed alone
MAX_LISTS = 2**18  # limit of a body for the full decoder


def read_json_group(body: bytes | bytearray, key: str | None = None) -> ParsedGroup:
    """Parse the group of a JSON object; ``key`` applies if the group has no key."""
    if len(body) <= QUICK_BYTES:
        return packed_group(_checked_group(body, key))
    with ONE_LARGE:
        return packed_group(_checked_group(body, key))


def read_json_groups(body: Body) -> list[ParsedGroup]:
    """Parse the groups of a JSON list, each as soon as it is complete."""
    if not isinstance(body, (bytes, bytearray)):
        return parse_each(read_json_group, split_list(body))
    try:
        parts = list(split_list([body]))
    except MalformedBody:
        records = _decode(bytes(body), _MANY)
        return parse_each(lambda record: packed_group(_columns_of(record, None)), records)
    return parse_each(read_json_group, parts)


def stored_form(text: bytes) -> bytes:
    """The payload of a group that an earlier release accepted and stored as JSON.

    Raises:
        ValueError: it is no group.
    """
    try:
        return packed_group(JsonGroup(text)).payload
    except (InvalidGroup, MalformedBody):
        return packed_group(_columns_of(_decode(text, _ONE), None)).payload


def _checked_group(body: bytes | bytearray, key: str | None) -> GroupArrays:
    try:
        group = JsonGroup(body, key)
        require_trainable(group)
        check_probabilities(group)
    except (InvalidGroup, MalformedBody):
        if len(body) > WHOLE_BYTES:
            raise
        return _columns_of(_decode(bytes(body), _ONE), key)
    return group


# --- full decoder ----------------------------------------------------------------------------


def _columns_of(record: ScoredData, key: str | None) -> Columns:
    """Checked columns of a record, whose floats are kept exactly."""
    for name in OPTIONAL_LISTS:  # the original's collectors write [] for a missing list
        if getattr(record, name) == []:
            setattr(record, name, None)
    return with_floats(with_marks(from_group(record), key), exact)


def _decode(body: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    if body.count(b"{") > MAX_OBJECTS:
        raise MalformedBody(f"more than {MAX_OBJECTS} JSON objects: send fewer at a time")
    if body.count(b"[") > MAX_LISTS:
        raise MalformedBody(f"more than {MAX_LISTS} JSON lists: send fewer at a time")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        softened = _decode_softly(body, decoder.type)
        if softened is None:
            raise InvalidGroup("body", "", without_values(str(error))) from error
        return softened
    except RecursionError as error:
        raise MalformedBody("the body is nested too deeply") from error
    except ValueError as error:  # msgspec.DecodeError, or bytes that are not UTF-8
        place = _first_non_finite(body)
        if place is not None:
            raise InvalidGroup(place, "", "not a finite number") from error
        raise MalformedBody("the body is not valid JSON") from error


def _first_non_finite(body: bytes) -> str | None:
    """The place of the first NaN or Infinity, which Python writes and JSON does not allow."""
    try:
        pending: list[tuple[str, Any]] = [("", json.loads(body))]
    except (ValueError, RecursionError):
        return None
    while pending:
        place, value = pending.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return place.rstrip(".") or "body"
        named = not place.endswith(".") and place != ""
        if isinstance(value, dict):  # keys inside a field are user data and are not echoed
            pending += [
                (place + name if name in KEYS and not named else place, member)
                for name, member in value.items()
            ]
        if isinstance(value, list):
            dot = "" if named else "."
            pending += [
                (f"{place}[{i}]{dot}"[:200], element)
                for i, element in reversed(list(enumerate(value)))
            ]
    return None


def _decode_softly(body: bytes, kind: Any) -> Any:
    """Decode with bools, integral floats and numbers in quotes as the original did.

    Old environments drop a group after a 4xx. None: the body has another error.
    """
    try:
        return msgspec.convert(_lenient_form(msgspec.json.decode(body)), kind, strict=False)
    except (ValueError, RecursionError):
        return None


def _lenient_form(value: Any) -> Any:
    """``value`` with bools and integral floats converted where that is lossless."""
    if isinstance(value, list):
        return [_lenient_form(element) for element in value]
    if not isinstance(value, dict):
        return value
    soft = dict(value)
    for name in ("tokens", "masks", "versions", "distill_token_ids", "env_id"):
        if name in soft:
            soft[name] = _whole(soft[name])
    if isinstance(soft.get("scores"), list):
        soft["scores"] = [float(s) if isinstance(s, bool) else s for s in soft["scores"]]
    return soft


def _whole(value: Any) -> Any:
    if isinstance(value, list):
        return [_whole(element) for element in value]
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    return value

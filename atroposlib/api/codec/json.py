"""Parser of JSON groups: a fast path over typed arrays, and the full msgspec decoder.

The fast path accepts only bodies that it proves valid; the full decoder decides all others.
The parser is lenient on purpose: environments of the original drop a group after a 4xx, so
it accepts the type errors that the original accepted. Both parsers raise the errors of
:func:`atroposlib.api.codec.read_group`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import msgspec

from atroposlib.api.codec.formats import (
    ONE_LARGE,
    WHOLE_BYTES,
    Body,
    ParsedGroup,
    find_marks,
    parse_each,
    parsed_group,
)
from atroposlib.api.codec.json_columns import (
    KEYS,
    OPTIONAL_LISTS,
    LargeGroup,
    count_byte,
    parse_columns,
)
from atroposlib.api.codec.json_pieces import split_list
from atroposlib.api.common.records import Media
from atroposlib.errors import InvalidGroup
from atroposlib.wire import ScoredData
from atroposlib.wire.columns import from_group, without_values
from atroposlib.wire.safetensors import MalformedBody

_ONE = msgspec.json.Decoder(ScoredData)
_MANY = msgspec.json.Decoder(list[ScoredData])
QUICK_BYTES = 256 * 2**10  # a larger body is parsed alone
# An object may be two bytes long and costs a hundred bytes or more to decode.
MAX_OBJECTS = 2**17
MAX_LISTS = 2**18  # of a body for the full decoder


def read_json_group(body: bytes | bytearray, key: str | None = None) -> ParsedGroup:
    """Parse the group of a JSON object; ``key`` applies if the group has no key."""
    if len(body) > QUICK_BYTES:
        with ONE_LARGE:
            if len(body) <= WHOLE_BYTES:
                return _small_group(bytes(body), key)
            return _large_group(bytearray(body) if isinstance(body, bytes) else body, key)
    return _small_group(bytes(body), key)


def _small_group(body: bytes, key: str | None) -> ParsedGroup:
    _require_few_objects(body)
    return _proven_group(body, key) or _decoded_group(body, key)


def _require_few_objects(body: bytes) -> None:
    if count_byte(b"{", body) > MAX_OBJECTS:
        raise MalformedBody(f"more than {MAX_OBJECTS} JSON objects: send fewer at a time")


def read_json_groups(body: Body) -> list[ParsedGroup]:
    """Parse the groups of a JSON list, each as soon as it is complete."""
    if not isinstance(body, (bytes, bytearray)):
        return parse_each(read_json_group, split_list(body))
    _require_few_objects(body := bytes(body))
    try:
        parts = list(split_list([body]))
    except MalformedBody:
        return parse_each(_checked, _decode(body, _MANY))
    return parse_each(read_json_group, parts)


# --- fast path: no Python object per number --------------------------------------------------


def _proven_group(body: bytes | bytearray, key: str | None) -> ParsedGroup | None:
    proven = parse_columns(body)
    if proven is None:
        return None
    columns, keys = proven
    added: dict[str, bytes] = {}
    marks = find_marks(columns)
    if marks:
        added["marks"] = msgspec.json.encode(marks)
    if key is not None and columns.idempotency_key is None:
        added["idempotency_key"] = msgspec.json.encode(key)
    # Marks from the sender, or a null key, must be replaced: the full decoder does that.
    if "marks" in columns.rest or not keys.isdisjoint(added):
        return None
    return parsed_group(columns, _completed(body, keys, added), Media.JSON, key, marks)


def _completed(
    body: bytes | bytearray, keys: Collection[str], added: dict[str, bytes]
) -> bytes | bytearray:
    """The received bytes with the missing keys inserted before the last brace."""
    missing = [name for name in KEYS if name not in keys]
    if not missing:
        return body
    end = body.rindex(b"}")
    members = (b',"%s":%s' % (name.encode(), added.get(name, b"null")) for name in missing)
    if isinstance(body, bytearray):  # in place: a large one is not copied
        body[end:] = b"".join([*members, b"}"])
        return body
    return b"".join([memoryview(body)[:end], *members, b"}"])


def _large_group(body: bytearray, key: str | None) -> ParsedGroup:
    """Parse a group in pieces; what the full decoder would replace is replaced in ``body``."""
    group = LargeGroup(body)
    columns, places = group.head, group.places
    marks = find_marks(columns)
    added = {"marks": msgspec.json.encode(marks or None)}
    if key is not None and columns.idempotency_key is None:
        added["idempotency_key"] = msgspec.json.encode(key)
    mended = group.mended | {name: one for name, one in added.items() if name in places}
    for name in sorted(mended, key=lambda name: places[name].start, reverse=True):
        body[places[name]] = mended[name]
    kept = _completed(body, places, added)
    parsed = parsed_group(columns, kept, Media.JSON, key, marks, group.row_numbers())
    return replace(parsed, n_tokens=group.n_tokens, version=group.version)


# --- full decoder ----------------------------------------------------------------------------


def _decoded_group(body: bytes, key: str | None) -> ParsedGroup:
    group = _decode(body, _ONE)
    if key is not None and group.idempotency_key is None:
        group.idempotency_key = key
    return _checked(group)


def _checked(group: ScoredData) -> ParsedGroup:
    for name in OPTIONAL_LISTS:  # the original's collectors write [] for a missing list
        if getattr(group, name) == []:
            setattr(group, name, None)
    columns = from_group(group)
    marks = find_marks(columns)
    group.marks = list(marks) or None
    return parsed_group(columns, msgspec.json.encode(group), Media.JSON, None, marks)


def _decode(body: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
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
                (place + name if name in KEYS and not named else place, one)
                for name, one in value.items()
            ]
        if isinstance(value, list):
            dot = "" if named else "."
            pending += [
                (f"{place}[{i}]{dot}"[:200], one)
                for i, one in reversed(list(enumerate(value)))
            ]
    return None


def _decode_softly(body: bytes, kind: Any) -> Any:
    """Decode with bools as scores and integral floats as ids, as the original did.

    Old environments drop a group after a 4xx. None: the body has another error.
    """
    try:
        return msgspec.convert(_softened(msgspec.json.decode(body)), kind)
    except (ValueError, RecursionError):
        return None


def _softened(value: Any) -> Any:
    """The same value with bools and integral floats converted where that is lossless."""
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

"""Parser of JSON groups: a fast path over typed arrays, and the full msgspec decoder.

The fast path accepts only bodies that it proves valid; the full decoder decides all others.
The parser is lenient on purpose: environments of the original drop a group after a 4xx, so
it accepts the type errors that the original accepted. Both parsers raise the errors of
:func:`atroposlib.api.codec.read_group`.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from atroposlib.api.codec.formats import ParsedGroup, find_marks, parse_each, parsed_group
from atroposlib.api.codec.json_columns import KEYS, count_byte, parse_columns
from atroposlib.api.common.records import Media
from atroposlib.errors import InvalidGroup
from atroposlib.wire import PER_SEQUENCE, PER_TOKEN, ScoredData
from atroposlib.wire.columns import from_group, without_values
from atroposlib.wire.safetensors import MalformedBody

_ONE = msgspec.json.Decoder(ScoredData)
_MANY = msgspec.json.Decoder(list[ScoredData])
_OPTIONAL_LISTS = (*PER_SEQUENCE[1:], *PER_TOKEN)  # scores are never optional
_BLANKS = b" \t\r\n"
# An object may be two bytes long and costs a hundred bytes or more to decode.
MAX_OBJECTS = 2**17
MAX_LISTS = 2**18  # of a body for the full decoder


def read_json_group(body: bytes, key: str | None = None) -> ParsedGroup:
    """Parse the group of a JSON object; ``key`` applies if the group has no key."""
    _require_few_objects(body)
    return _proven_group(body, key) or _decoded_group(body, key)


def _require_few_objects(body: bytes) -> None:
    if count_byte(b"{", body) > MAX_OBJECTS:
        raise MalformedBody(f"more than {MAX_OBJECTS} JSON objects: send fewer at a time")


def read_json_groups(body: bytes) -> list[ParsedGroup]:
    """Parse the groups of a JSON list."""
    _require_few_objects(body)
    places = split_list(body)
    if places is None:
        return parse_each(_checked, _decode(body, _MANY))
    return parse_each(lambda place: read_json_group(body[place]), places)


# --- fast path: no Python object per number --------------------------------------------------


def _proven_group(body: bytes, key: str | None) -> ParsedGroup | None:
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


def _completed(body: bytes, keys: frozenset[str], added: dict[str, bytes]) -> bytes:
    """The received bytes with the missing keys inserted before the last brace."""
    missing = [name for name in KEYS if name not in keys]
    if not missing:
        return body
    end = body.rindex(b"}")
    members = (b',"%s":%s' % (name.encode(), added.get(name, b"null")) for name in missing)
    return b"".join([memoryview(body)[:end], *members, b"}"])


# --- full decoder ----------------------------------------------------------------------------


def _decoded_group(body: bytes, key: str | None) -> ParsedGroup:
    group = _decode(body, _ONE)
    if key is not None and group.idempotency_key is None:
        group.idempotency_key = key
    return _checked(group)


def _checked(group: ScoredData) -> ParsedGroup:
    for name in _OPTIONAL_LISTS:  # the original's collectors write [] for a missing list
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


# --- elements of a list -------------------------------------------------------------------


def split_list(body: bytes) -> list[slice] | None:
    """Places of the elements of a JSON list of objects; None if the body is no such list.

    It reads quotes, backslashes and braces only, vectorised over all bytes. The elements are
    valid JSON only if each of them is parsed without error.
    """
    text = np.frombuffer(body, np.uint8)
    quotes = np.flatnonzero(text == ord('"'))
    if b"\\" in body:
        quotes = np.setdiff1d(quotes, _escaped(text), assume_unique=True)
    opening = _outside(np.flatnonzero(text == ord("{")), quotes)
    closing = _outside(np.flatnonzero(text == ord("}")), quotes)
    if not len(opening) or len(opening) != len(closing):
        return None
    places = np.concatenate([opening, closing])
    steps = np.concatenate([np.ones_like(opening), -np.ones_like(closing)])
    order = np.argsort(places)
    places, steps = places[order], steps[order]
    depth = np.cumsum(steps)
    starts = places[(depth == 1) & (steps == 1)].tolist()
    ends = (places[depth == 0] + 1).tolist()
    if len(starts) != len(ends) or int(depth.min()) < 0:
        return None
    glue = [body[end:start] for end, start in zip([0, *ends], [*starts, len(body)])]
    if [one.strip(_BLANKS) for one in glue] != [b"[", *[b","] * (len(starts) - 1), b"]"]:
        return None
    return [slice(start, end) for start, end in zip(starts, ends)]


def _escaped(text: NDArray[np.uint8]) -> NDArray[Any]:
    """Positions after an odd number of backslashes."""
    slashes = np.flatnonzero(text == ord("\\"))
    first = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)  # of each run
    lengths = np.diff(first, append=len(slashes))
    odd = lengths % 2 == 1
    escaped: NDArray[Any] = slashes[first[odd]] + lengths[odd]
    return escaped


def _outside(places: NDArray[Any], quotes: NDArray[Any]) -> NDArray[Any]:
    """The places outside of strings."""
    outside: NDArray[Any] = places[np.searchsorted(quotes, places) % 2 == 0]
    return outside

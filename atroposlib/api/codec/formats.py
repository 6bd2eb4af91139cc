"""Formats of a group body: parsed form, binary parsing, transcoding at delivery. Pure.

A group is kept as it was received, so a batch is served without decoding one. Parsers raise
the errors of :func:`atroposlib.api.codec.read_group`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar, cast

import msgspec
import numpy as np

from atroposlib.api.codec.json_columns import KEYS, LargeGroup, parse_columns
from atroposlib.api.codec.row_facts import GroupFacts, facts_of
from atroposlib.api.common.records import BatchMember, Media, NewGroup, Payload
from atroposlib.errors import CorruptPayload, InvalidGroup
from atroposlib.wire import ScoredData
from atroposlib.wire.binary import (
    inflated_size,
    is_zstd,
    pack_columns,
    split_frames,
    unpack_columns,
)
from atroposlib.wire.columns import Columns, from_group, split_rows, to_group
from atroposlib.wire.messages import MASKED, MASKED_LOGPROB, MASKED_VERSION
from atroposlib.wire.routing import unstacked
from atroposlib.wire.safetensors import Array, MalformedBody

T = TypeVar("T")
# What a post carries, inflated: a large one in pieces, each of which is freed once it is read.
Body = bytes | Iterator[bytes]

GROUP_MEDIA = "application/x-safetensors"  # one group, as safetensors or a zstd frame of it
GROUPS_MEDIA = "application/x-atropos-groups"  # frames of them
# A mark that the API writes into an accepted group whose ``advantages`` do not fit its tokens.
ADVANTAGES_LENGTH = "advantages_length"
# A smaller JSON body is parsed whole, by the full decoder if need be, for at most 30 times its
# size in memory; a larger one in pieces.
WHOLE_BYTES = 2 * 2**20


@dataclass(frozen=True, slots=True)
class ParsedGroup(NewGroup):
    """A checked group. It is made, and its digest computed, off the event loop."""

    declared_size: int | None = None  # group_overrides["group_size"], if it is an int
    incarnation: int | None = None  # of ``version``
    length: int = 0  # tokens of all rows, trained or not
    marks: tuple[str, ...] = ()
    facts: GroupFacts | None = None  # for the index of rollouts


def parsed_group(
    columns: Columns,
    payload: bytes | bytearray | memoryview,
    media: Media,
    key: str | None,
    marks: tuple[str, ...],
) -> ParsedGroup:
    """A checked group; ``key`` applies if the group has no key."""
    own = columns.idempotency_key
    return ParsedGroup(
        payload=cast(bytes, payload),  # the stores take any of these types
        media=media,
        n_seq=len(columns.seq_lens),
        n_tokens=columns.n_tokens,
        env=columns.env_id,
        key=key if own is None else own,
        version=columns.version,
        declared_size=columns.declared_size,
        incarnation=columns.incarnation,
        length=int(columns.seq_lens.sum()),
        marks=marks,
        facts=facts_of(columns),
    )


def find_marks(columns: Columns) -> tuple[str, ...]:
    """Marks of accepted irregularities: advantages in ``rest`` do not fit the tokens."""
    return (ADVANTAGES_LENGTH,) if "advantages" in columns.rest else ()


def parse_each(parse: Callable[[T], ParsedGroup], parts: Iterable[T]) -> list[ParsedGroup]:
    """The groups of a list.

    Raises:
        InvalidGroup: the first invalid group; the field begins with its place, as ``[3].``.
    """
    groups = []
    for i, part in enumerate(parts):
        try:
            groups.append(parse(part))
        except InvalidGroup as error:
            raise InvalidGroup(f"[{i}].{error.field}", error.index, error.problem) from error
    return groups


def media_type(content_type: str) -> str:
    """Without parameters such as the charset."""
    return content_type.partition(";")[0].strip().lower()


def whole(body: Body) -> bytes | bytearray:
    """The body in one piece."""
    if isinstance(body, bytes):
        return body
    joined = bytearray()
    for piece in body:
        joined += piece
    return joined


# Of JSON, and of one binary group inflated, that are parsed in 0.2 ms.
QUICK_JSON_BYTES = 16 * 2**10
QUICK_BINARY_BYTES = 64 * 2**10


def is_quick(body: Body, content_type: str) -> bool:
    """Whether a body is parsed in less time than it takes to pass it to a thread.

    Raises:
        MalformedBody: a zstd frame without a usable size.
    """
    kind = media_type(content_type)
    if not isinstance(body, bytes) or len(body) > QUICK_BINARY_BYTES or kind == GROUPS_MEDIA:
        return False
    if kind != GROUP_MEDIA:
        return len(body) <= QUICK_JSON_BYTES
    return not is_zstd(body) or inflated_size(body) <= QUICK_BINARY_BYTES


# --- binary groups --------------------------------------------------------------------

# A few kilobytes can inflate to a valid group of 128 MB, so large ones go one at a time.
LARGE_BYTES = 16 * 2**20
ONE_LARGE = threading.Lock()


def read_binary_group(body: Body | memoryview, key: str | None = None) -> ParsedGroup:
    """Parse a safetensors file, or a zstd frame of one.

    ``key`` applies if the group has no key; it is not written into the bytes.
    """
    if not isinstance(body, (bytes, memoryview)):
        body = memoryview(whole(body))
    if is_zstd(body) and inflated_size(body) > LARGE_BYTES:
        with ONE_LARGE:
            return _read(body, key)
    return _read(body, key)


def read_frames(body: Body) -> list[ParsedGroup]:
    """Parse the groups in frames; those of a large body stay views of it."""
    if isinstance(body, bytes):
        return parse_each(lambda file: read_binary_group(bytes(file)), split_frames(body))
    return parse_each(read_binary_group, split_frames(memoryview(whole(body))))


def _read(body: bytes | memoryview, key: str | None) -> ParsedGroup:
    columns = unpack_columns(body)
    marks = find_marks(columns)
    zstd = is_zstd(body)
    if marks or "marks" in columns.rest:
        body = pack_columns(_marked(columns, marks), compress=zstd)
    media = Media.SAFETENSORS_ZSTD if zstd else Media.SAFETENSORS
    return parsed_group(columns, body, media, key, marks)


def _marked(columns: Columns, marks: tuple[str, ...]) -> Columns:
    """The columns with the marks of the API in place of those of the sender."""
    rest = {name: one for name, one in columns.rest.items() if name != "marks"}
    if marks:
        rest["marks"] = msgspec.json.encode(marks)
    return replace(columns, rest=rest)


# --- delivery -------------------------------------------------------------------------


class Encoding(Enum):
    """Encodings of a delivery."""

    JSON = "application/json"
    FRAMES = "application/x-atropos-groups"  # each a safetensors file, or a zstd frame of one


def accepted_encoding(accept: str) -> Encoding:
    """The encoding that an Accept header names; JSON by default."""
    for one in accept.lower().split(","):
        kind, _, parameters = one.partition(";")
        if kind.strip() == Encoding.FRAMES.value and parameters.replace(" ", "") != "q=0":
            return Encoding.FRAMES
    return Encoding.JSON


def is_stored_as(media: Media, form: Encoding) -> bool:
    """Whether stored bytes of ``media`` are sent in this encoding unchanged."""
    return (media is Media.JSON) == (form is Encoding.JSON)


def encode_group(
    payload: Payload, member: BatchMember, form: Encoding, min_version: int | None
) -> Iterator[bytes]:
    """The group in ``form`` in pieces, with tokens older than ``min_version`` masked.

    Raises:
        CorruptPayload: the payload is no group, although its digest matches.
    """
    stale = member.is_older_than(min_version)
    if is_stored_as(payload.media, form) and not stale:
        return iter([payload.data])
    try:
        columns = read_columns(payload)
    except (InvalidGroup, MalformedBody, msgspec.DecodeError) as error:
        raise CorruptPayload([member.gid]) from error
    if stale and min_version is not None:
        columns = stale_masked(columns, min_version)
    return to_json(columns) if form is Encoding.JSON else iter([pack_columns(columns)])


def stale_masked(columns: Columns, min_version: int) -> Columns:
    """The group with the tokens of versions before ``min_version`` masked.

    A group without versions is masked completely; call this for stale groups only.
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


def read_columns(payload: Payload) -> Columns:
    """The numbers of a stored group.

    Raises:
        InvalidGroup, MalformedBody, msgspec.DecodeError: the payload is no group.
    """
    if payload.media is not Media.JSON:
        return unpack_columns(payload.data)
    if len(payload.data) > WHOLE_BYTES:
        with ONE_LARGE:
            return LargeGroup(payload.data, keep=True).columns
    proven = parse_columns(payload.data)
    if proven is not None:
        return proven[0]
    return from_group(msgspec.json.decode(payload.data, type=ScoredData))


def to_json(columns: Columns) -> Iterator[bytes]:
    """Canonical JSON in pieces: every key of the record, in its order."""
    if len(columns.tokens) <= _NUMBERS and columns.distilled is None:
        yield msgspec.json.encode(to_group(columns))
        return
    numbers = columns.floats | {"tokens": columns.tokens, "masks": columns.masks}
    if columns.versions is not None:
        numbers["versions"] = columns.versions
    before = b"{"
    for name in KEYS:
        yield b'%s"%s":' % (before, name.encode())
        before = b","
        if name in numbers or name.startswith("distill_"):
            yield from _json_rows(columns, name, numbers.get(name))
        elif name == "scores":
            yield msgspec.json.encode(columns.scores.tolist())
        elif name == "routed_experts" and columns.routed_experts is not None:
            yield msgspec.json.encode(unstacked(columns.routed_experts, columns.seq_lens))
        else:
            named = getattr(columns, name, None)
            yield columns.rest.get(name) or msgspec.json.encode(named)
    yield b"}"


_NUMBERS = 2**16  # that are Python objects at the same time


def _json_rows(columns: Columns, name: str, values: Array | None) -> Iterator[bytes]:
    """A member with an entry per token: of ``values``, or a list of the teacher's choices."""
    counts: Array | None = None
    step, taken, start = _NUMBERS, 0, 0
    if values is None and columns.distilled is not None:
        counts = columns.distilled.counts
        values = getattr(columns.distilled, name.removeprefix("distill_"))
        step = max(1, _NUMBERS // max(1, int(counts.max())))
    if values is None:
        yield b"null"
        return
    for g, length in enumerate(columns.seq_lens.tolist()):
        for at in range(start, start + length, step):
            end = min(at + step, start + length)
            if counts is None:
                some = values[at:end].tolist()
            else:
                size = int(counts[at:end].sum())
                some = split_rows(values[taken : taken + size].tolist(), counts[at:end])
                taken += size
            opening = b"," if at > start else b",[" if g else b"[["
            yield opening + msgspec.json.encode(some)[1:-1]
        yield b"]"
        start += length
    yield b"]"

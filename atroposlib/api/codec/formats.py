"""Formats of a group body: parsed form, and parsing of binary groups. Pure.

A group is kept as it was received, so a batch is served without decoding one. Parsers raise
the errors of :func:`atroposlib.api.codec.read_group`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import msgspec

from atroposlib.api.codec.row_facts import GroupFacts, RowNumbers, facts_of
from atroposlib.api.common.records import Media, NewGroup
from atroposlib.errors import InvalidGroup
from atroposlib.wire.binary import (
    inflated_size,
    is_zstd,
    pack_columns,
    split_frames,
    unpack_columns,
)
from atroposlib.wire.columns import Columns
from atroposlib.wire.safetensors import Bytes

T = TypeVar("T")
# What a post carries, inflated: a large one in pieces, each of which is freed once it is read.
Body = bytes | bytearray | Iterator[bytes]

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
    numbers: Sequence[RowNumbers] = (),
) -> ParsedGroup:
    """A checked group; ``key`` applies if the group has no key, ``numbers`` as of its facts."""
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
        facts=facts_of(columns, numbers),
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
    if isinstance(body, (bytes, bytearray)):
        return body
    joined = bytearray()
    for piece in body:
        joined += piece
    return joined


# Of JSON, that are parsed in 0.2 ms, and of one binary group inflated, in 1 ms.
QUICK_JSON_BYTES = 16 * 2**10
QUICK_BINARY_BYTES = 2**20


def is_quick(body: Body, content_type: str) -> bool:
    """Whether a body is parsed on the event loop: to pass it to a thread would cost more.

    Raises:
        MalformedBody: a zstd frame without a usable size.
    """
    kind = media_type(content_type)
    if not isinstance(body, (bytes, bytearray)) or kind == GROUPS_MEDIA:
        return False
    if kind != GROUP_MEDIA:
        return len(body) <= QUICK_JSON_BYTES
    return (inflated_size(body) if is_zstd(body) else len(body)) <= QUICK_BINARY_BYTES


# --- binary groups --------------------------------------------------------------------

# A few kilobytes can inflate to a valid group of 128 MB, so large ones go one at a time.
LARGE_BYTES = 16 * 2**20
ONE_LARGE = threading.Lock()


def read_binary_group(body: Body | memoryview, key: str | None = None) -> ParsedGroup:
    """Parse a safetensors file, or a zstd frame of one.

    ``key`` applies if the group has no key; it is not written into the bytes.
    """
    if not isinstance(body, memoryview):
        body = whole(body)
    if is_zstd(body) and inflated_size(body) > LARGE_BYTES:
        with ONE_LARGE:
            return _read(body, key)
    return _read(body, key)


def read_frames(body: Body) -> list[ParsedGroup]:
    """Parse the groups in frames; those of a large body stay views of it."""
    if isinstance(body, (bytes, bytearray)):
        return parse_each(lambda file: read_binary_group(bytes(file)), split_frames(body))
    return parse_each(read_binary_group, split_frames(memoryview(whole(body))))


def _read(body: Bytes, key: str | None) -> ParsedGroup:
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

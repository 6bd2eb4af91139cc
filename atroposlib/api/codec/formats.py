"""The stored form of a group, and the parser of binary groups. Pure.

    JSON   -> JsonGroup -> checks -> a safetensors file, a zstd frame of it if it is large
    binary -> Columns   -> checks -> the received bytes

So a binary batch is served without decoding a group. Parsers raise the errors of
:func:`atroposlib.api.codec.read_group`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import msgspec

from atroposlib.api.codec.row_facts import GroupFacts, facts_of
from atroposlib.api.common.records import NewGroup
from atroposlib.errors import InvalidGroup
from atroposlib.wire.binary import (
    MAX_GROUP_BYTES,
    frame_content_size,
    is_zstd,
    split_frames,
    unpack_columns,
)
from atroposlib.wire.group_arrays import Columns, GroupArrays
from atroposlib.wire.packing import exact, pack, with_floats
from atroposlib.wire.safetensors import Bytes

T = TypeVar("T")
# Inflated content of a post: a large post in pieces, each of which is freed once it is read.
Body = bytes | bytearray | Iterator[bytes]

JSON_MEDIA = "application/json"
GROUP_MEDIA = "application/x-safetensors"  # a group, as safetensors or a zstd frame of it
GROUPS_MEDIA = "application/x-atropos-groups"  # frames of groups
# A mark that the API writes into an accepted group whose ``advantages`` do not fit its tokens.
ADVANTAGES_LENGTH = "advantages_length"
# A smaller JSON body is parsed by the full decoder if need be, for at most 30 times its size in
# memory. A smaller stored group is inflated whole.
WHOLE_BYTES = 2 * 2**20
RAW_BYTES = 64 * 2**10  # a smaller group of a JSON post is stored uncompressed


@dataclass(frozen=True, slots=True)
class ParsedGroup(NewGroup):
    """A checked group. It is made, and its digest computed, off the event loop."""

    posted_as: str = "json"  # or "safetensors", "safetensors+zstd"; a label of metrics
    declared_size: int | None = None  # group_overrides["group_size"], if it is an int
    incarnation: int | None = None  # life of the trainer that announced ``version``
    length: int = 0  # tokens of all rows, trained or not
    marks: tuple[str, ...] = ()
    facts: GroupFacts | None = None  # facts for the index of rollouts


def packed_group(group: GroupArrays) -> ParsedGroup:
    """A checked group of a JSON post, in the stored form.

    Raises:
        InvalidGroup: its arrays take more than a file may hold.
    """
    payload = pack(group, compress_above=RAW_BYTES, max_bytes=MAX_GROUP_BYTES)
    return parsed_group(group, payload, "json", None)


def parsed_group(
    group: GroupArrays, payload: Bytes, posted_as: str, key: str | None
) -> ParsedGroup:
    """A checked group with its stored form; ``key`` applies if the group has no key."""
    head, facts = group.head, facts_of(group)
    versions = [row.version_min for row in facts.rows if row.version_min is not None]
    return ParsedGroup(
        payload=cast(bytes, payload),  # the stores take any of these types
        posted_as=posted_as,
        n_seq=len(head.seq_lens),
        n_tokens=sum(row.n_trained for row in facts.rows),
        env=head.env_id,
        key=key if head.idempotency_key is None else head.idempotency_key,
        version=min(versions, default=None),
        declared_size=head.declared_size,
        incarnation=head.incarnation,
        length=int(head.seq_lens.sum()),
        marks=marks_of(head),
        facts=facts,
    )


def marks_of(head: Columns) -> tuple[str, ...]:
    """Marks of accepted irregularities: advantages in ``rest`` do not fit the tokens."""
    return (ADVANTAGES_LENGTH,) if "advantages" in head.rest else ()


def with_marks(head: Columns, key: str | None) -> Columns:
    """The group with the marks of the API in place of the sender's marks.

    ``key`` applies if it has no key.
    """
    rest = {name: text for name, text in head.rest.items() if name != "marks"}
    if marks := marks_of(head):
        rest["marks"] = msgspec.json.encode(marks)
    own = head.idempotency_key
    return replace(head, rest=rest, idempotency_key=key if own is None else own)


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
    """The media type without parameters (charset)."""
    return content_type.partition(";")[0].strip().lower()


def whole_body(body: Body) -> bytes | bytearray:
    """The body in a single piece."""
    if isinstance(body, (bytes, bytearray)):
        return body
    joined = bytearray()
    for piece in body:
        joined += piece
    return joined


# Sizes of JSON parsed in 0.2 ms, and of an inflated binary group parsed in 1 ms.
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
    return (frame_content_size(body) if is_zstd(body) else len(body)) <= QUICK_BINARY_BYTES


# --- binary groups --------------------------------------------------------------------

# A few kilobytes can inflate to a valid group of 128 MB, so large groups are parsed in turn.
LARGE_BYTES = 16 * 2**20
ONE_LARGE = threading.Lock()


def read_binary_group(body: Body | memoryview, key: str | None = None) -> ParsedGroup:
    """Parse a safetensors file, or a zstd frame of a file.

    ``key`` applies if the group has no key; it is not written into the bytes.
    """
    if not isinstance(body, memoryview):
        body = whole_body(body)
    if is_zstd(body) and frame_content_size(body) > LARGE_BYTES:
        with ONE_LARGE:
            return _read(body, key)
    return _read(body, key)


def read_frames(body: Body) -> list[ParsedGroup]:
    """Parse the groups in frames; groups of a large body stay views of it."""
    if isinstance(body, (bytes, bytearray)):
        return parse_each(read_binary_group, map(bytes, split_frames(body)))
    return parse_each(read_binary_group, split_frames(memoryview(whole_body(body))))


def _read(body: Bytes, key: str | None) -> ParsedGroup:
    columns, zstd = unpack_columns(body), is_zstd(body)
    if marks_of(columns) or "marks" in columns.rest:
        columns = with_marks(columns, None)
        body = pack(with_floats(columns, exact), compress_above=0 if zstd else None)
    return parsed_group(columns, body, "safetensors+zstd" if zstd else "safetensors", key)

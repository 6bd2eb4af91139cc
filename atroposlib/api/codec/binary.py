"""Binary groups: header and values are checked as arrays, and the bytes kept as received."""

from __future__ import annotations

import threading
from dataclasses import replace

import msgspec

from atroposlib.api.codec.parsed import (
    Incoming,
    MalformedBody,
    incoming_of,
    marks_of,
    placed,
)
from atroposlib.api.common.records import Media
from atroposlib.errors import InvalidGroup
from atroposlib.wire.binary import (
    inflated_size,
    is_zstd,
    pack_columns,
    split_frames,
    unpack_columns,
)
from atroposlib.wire.columns import Columns
from atroposlib.wire.safetensors import MalformedBinary

# A few kilobytes can be a valid group of 128 MB; several at once would be felt.
_LARGE_BYTES = 16 * 2**20
_ONE_LARGE = threading.Lock()


def read_binary_group(body: bytes, key: str | None = None) -> Incoming:
    """The group in a safetensors file, or in a zstd frame of one; ``key`` counts if it
    names none itself, and is then not part of the bytes.

    Raises:
        InvalidGroup: names field and index, never a value.
        MalformedBody: neither a safetensors file nor a zstd frame of one.
    """
    try:
        large = is_zstd(body) and inflated_size(body) > _LARGE_BYTES
        if large:
            with _ONE_LARGE:
                return _read(body, key)
        return _read(body, key)
    except MalformedBinary as error:
        raise MalformedBody(str(error)) from error


def read_frames(body: bytes) -> list[Incoming]:
    """The groups in frames.

    Raises:
        InvalidGroup: of the first group that is refused; its place among them leads.
        MalformedBody: the frames, or one of the files, cannot be read at all.
    """
    try:
        files = split_frames(body)
    except MalformedBinary as error:
        raise MalformedBody(str(error)) from error
    groups = []
    for i, file in enumerate(files):
        try:
            groups.append(read_binary_group(bytes(file)))
        except InvalidGroup as error:
            raise placed(error, f"[{i}].") from error
    return groups


def _read(body: bytes, key: str | None) -> Incoming:
    columns = unpack_columns(body)
    marks = marks_of(columns)
    zstd = is_zstd(body)
    if marks or "marks" in columns.rest:
        body = pack_columns(_marked(columns, marks), compress=zstd)
    media = Media.SAFETENSORS_ZSTD if zstd else Media.SAFETENSORS
    return incoming_of(columns, body, media, key, marks)


def _marked(columns: Columns, marks: tuple[str, ...]) -> Columns:
    """Marks are the API's to set: whatever the sender wrote there is replaced."""
    rest = {name: one for name, one in columns.rest.items() if name != "marks"}
    if marks:
        rest["marks"] = msgspec.json.encode(marks)
    return replace(columns, rest=rest)

"""Parsers of group bodies: JSON or binary by content type.

A group is kept as it was received, so a batch is served without decoding one. JSON gets
the keys of the record that it lacks, because trainers index every key.
"""

from __future__ import annotations

from atroposlib.api.codec.formats import (
    GROUP_MEDIA,
    GROUPS_MEDIA,
    MalformedBody,
    ParsedGroup,
    media_type,
    read_binary_group,
    read_frames,
)
from atroposlib.api.codec.json import read_json_group, read_json_groups

__all__ = [
    "GROUP_MEDIA",
    "GROUPS_MEDIA",
    "Incoming",
    "MalformedBody",
    "media_type",
    "read_group",
    "read_groups",
]


def read_group(body: bytes, content_type: str, key: str | None = None) -> ParsedGroup:
    """The group of a body; ``key`` is its Idempotency-Key header, if any.

    What is neither of the binary types is read as JSON: old clients name all sorts.

    Raises:
        InvalidGroup: names field and index, never a value.
        MalformedBody: the body cannot be parsed at all.
    """
    if media_type(content_type) == GROUP_MEDIA:
        return read_binary_group(body, key)
    return read_json_group(body, key)


def read_groups(body: bytes, content_type: str) -> list[ParsedGroup]:
    """The groups of a JSON list, or of frames.

    Raises:
        InvalidGroup: of the first group that is refused; its place in the list leads.
        MalformedBody: as for :func:`read_group`.
    """
    if media_type(content_type) == GROUPS_MEDIA:
        return read_frames(body)
    return read_json_groups(body)

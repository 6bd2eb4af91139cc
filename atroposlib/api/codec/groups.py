"""Bodies with scored groups: bytes in, checked groups with the bytes to keep out. Pure.

A group is kept as it was received, so a batch is served without decoding one. JSON gets
the keys of the record that it lacks, because trainers index every key.
"""

from __future__ import annotations

from atroposlib.api.codec.binary import read_binary_group, read_frames
from atroposlib.api.codec.json import read_json_group, read_json_groups
from atroposlib.api.codec.parsed import Incoming, MalformedBody

__all__ = [
    "GROUP_MEDIA",
    "GROUPS_MEDIA",
    "Incoming",
    "MalformedBody",
    "read_group",
    "read_groups",
]

GROUP_MEDIA = "application/x-safetensors"  # one group, as safetensors or a zstd frame of it
GROUPS_MEDIA = "application/x-atropos-groups"  # frames of them


def read_group(body: bytes, content_type: str, key: str | None = None) -> Incoming:
    """The group of a body; ``key`` is its Idempotency-Key header, if any.

    What is neither of the binary types is read as JSON: old clients name all sorts.

    Raises:
        InvalidGroup: names field and index, never a value.
        MalformedBody: the body cannot be parsed at all.
    """
    if media_type(content_type) == GROUP_MEDIA:
        return read_binary_group(body, key)
    return read_json_group(body, key)


def read_groups(body: bytes, content_type: str) -> list[Incoming]:
    """The groups of a JSON list, or of frames.

    Raises:
        InvalidGroup: of the first group that is refused; its place in the list leads.
        MalformedBody: as for :func:`read_group`.
    """
    if media_type(content_type) == GROUPS_MEDIA:
        return read_frames(body)
    return read_json_groups(body)


def media_type(content_type: str) -> str:
    """Without parameters such as the charset."""
    return content_type.partition(";")[0].strip().lower()

"""Parsers of group bodies, JSON or binary by content type, and the encoding at delivery.

A group is always stored as a safetensors file: as it was received in binary, or made of JSON. So a
binary batch is sent without decoding its groups.
"""

from __future__ import annotations

from atroposlib.api.codec import formats
from atroposlib.api.codec.json import read_json_group, read_json_groups


def read_group(
    body: formats.Body, content_type: str, key: str | None = None
) -> formats.ParsedGroup:
    """Parse the body of a group; ``key`` is the Idempotency-Key header, if any.

    Any content type except the binary types is read as JSON: old clients send many types.

    Raises:
        InvalidGroup: names the field and the index, never a value.
        MalformedBody: the body cannot be parsed.
    """
    if formats.media_type(content_type) == formats.GROUP_MEDIA:
        return formats.read_binary_group(body, key)
    return read_json_group(formats.whole_body(body), key)


def read_groups(body: formats.Body, content_type: str) -> list[formats.ParsedGroup]:
    """Parse the groups of a JSON list, or of frames.

    Raises:
        InvalidGroup: the first invalid group; the field begins with its place in the list.
        MalformedBody: as for :func:`read_group`.
    """
    if formats.media_type(content_type) == formats.GROUPS_MEDIA:
        return formats.read_frames(body)
    return read_json_groups(body)

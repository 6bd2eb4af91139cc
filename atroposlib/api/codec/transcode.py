"""A stored group in the form its consumer asked for. Blocking: call it in a thread."""

from __future__ import annotations

from enum import Enum

import msgspec

from atroposlib.api.codec.json_columns import columns_of
from atroposlib.api.common.records import Media, Member, Payload
from atroposlib.errors import CorruptPayload, InvalidGroup
from atroposlib.wire import ScoredData
from atroposlib.wire.binary import pack_columns, unpack_columns
from atroposlib.wire.columns import Columns, stale_masked
from atroposlib.wire.rows import from_group, to_group
from atroposlib.wire.safetensors import MalformedBinary


class Form(Enum):
    """What a consumer may ask for."""

    JSON = "application/json"
    FRAMES = "application/x-atropos-groups"  # each a safetensors file, or a zstd frame of one


def form_of(accept: str) -> Form:
    """The form that an Accept header names; JSON unless it names the other."""
    for one in accept.lower().split(","):
        kind, _, parameters = one.partition(";")
        if kind.strip() == Form.FRAMES.value and parameters.replace(" ", "") != "q=0":
            return Form.FRAMES
    return Form.JSON


def as_stored(media: Media, form: Form) -> bool:
    """Whether bytes of this kind go out in this form unchanged."""
    return (media is Media.JSON) == (form is Form.JSON)


def is_stale(member: Member, min_version: int | None) -> bool:
    """Whether some of its tokens are older than ``min_version``, which masks them. The
    tokens of a sender that names no versions are at best as new as the run was then."""
    version = member.version if member.version is not None else member.arrived_version
    return min_version is not None and version is not None and version < min_version


def written(payload: Payload, member: Member, form: Form, min_version: int | None) -> bytes:
    """The group in ``form``, with what is older than ``min_version`` masked.

    Raises:
        CorruptPayload: it is no group, although its digest is right.
    """
    stale = is_stale(member, min_version)
    if as_stored(payload.media, form) and not stale:
        return payload.data
    try:
        columns = read_columns(payload)
    except (InvalidGroup, MalformedBinary, msgspec.DecodeError) as error:
        raise CorruptPayload([member.gid]) from error
    if stale and min_version is not None:
        columns = stale_masked(columns, min_version)
    return to_json(columns) if form is Form.JSON else pack_columns(columns)


def read_columns(payload: Payload) -> Columns:
    """The numbers of a stored group.

    Raises:
        InvalidGroup, MalformedBinary, msgspec.DecodeError: it is none.
    """
    if payload.media is not Media.JSON:
        return unpack_columns(payload.data)
    proven = columns_of(payload.data)
    if proven is not None:
        return proven[0]
    return from_group(msgspec.json.decode(payload.data, type=ScoredData))


def to_json(columns: Columns) -> bytes:
    """Canonical JSON: every key of the record, in its order."""
    return msgspec.json.encode(to_group(columns))

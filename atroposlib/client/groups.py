"""Encode and decode scored groups as bodies: JSON, or frames of safetensors."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from atroposlib.client.api_calls import JSON_BODY, mapping
from atroposlib.errors import InvalidGroup, RolloutApiRefused
from atroposlib.wire import ClaimedBatch, GroupsReceived, ScoredData

if TYPE_CHECKING:
    import httpx

    from atroposlib.wire.group_arrays import Columns

FRAMES = "application/x-atropos-groups"  # frames: u64 little-endian length | group
ACCEPT_FRAMES = {"accept": FRAMES}
RUN_ID_HEADER = "x-atropos-run-id"
_MIN_GZIP_BYTES = 1024

Group: TypeAlias = "ScoredData | dict[str, Any] | Columns"  # Columns: checked already


@dataclass(frozen=True, slots=True)
class Sent:
    """Result of sent groups, all of which are durable."""

    accepted: int  # groups, duplicates included
    duplicates: int = 0  # absorbed, because they had arrived before
    buffered: int = 0  # wait for the rest of their group
    credit_bytes: int | None = None  # payload bytes that would be accepted; None: not reported
    policy_version: int | None = None  # None: not reported


@dataclass(frozen=True, slots=True)
class Body:
    """Body of a request and the headers that describe it."""

    content: bytes
    headers: dict[str, str]


def as_json(groups: Sequence[Group], keys: Sequence[str], *, compress: bool) -> Body:
    """The groups as a JSON list. A group without a key gets its entry of ``keys``."""
    items = [_with_key(_as_rows(group), key) for group, key in zip(groups, keys)]
    content = msgspec.json.encode(items, enc_hook=_plain)
    headers = JSON_BODY
    if compress and len(content) >= _MIN_GZIP_BYTES:
        packer = zlib.compressobj(level=1, wbits=31)
        packed = packer.compress(content) + packer.flush()
        if len(packed) < len(content):
            return Body(packed, headers | {"content-encoding": "gzip"})
    return Body(content, headers)


def as_frames(groups: Sequence[Group], keys: Sequence[str], *, compress: bool) -> Body:
    """The groups as frames, each a safetensors file, in a zstd frame if ``compress``.

    Raises:
        RolloutApiRefused: a group breaks the record, with the detail of the API.
    """
    from atroposlib.wire.binary import concatenate_frames  # loads only where it is used

    packed: list[bytes] = []
    for group, key in zip(groups, keys):
        try:
            packed.append(_binary_group(group, key, compress))
        except InvalidGroup as error:
            raise RolloutApiRefused(422, f"[{len(packed)}].{error}") from error
    return Body(concatenate_frames(packed), {"content-type": FRAMES})


def _binary_group(group: Group, key: str, compress: bool) -> bytes:
    from atroposlib.wire.binary import pack_columns, pack_group
    from atroposlib.wire.group_arrays import Columns

    if isinstance(group, Columns):
        named = replace(group, idempotency_key=group.idempotency_key or key)
        return pack_columns(named, compress=compress)
    if isinstance(group, ScoredData):
        own = group.idempotency_key
        keyed = msgspec.structs.replace(group, idempotency_key=key if own is None else own)
        try:
            return pack_group(keyed, compress=compress)
        except (TypeError, InvalidGroup):
            pass  # it may hold arrays: retried below with a copy in lists
    fields = msgspec.to_builtins(_with_key(group, key), enc_hook=_plain)
    return pack_group(fields, compress=compress)


def read_claimed(response: httpx.Response) -> ClaimedBatch:
    """Decode a batch, or a shard of a batch, in either form."""
    if response.headers.get("content-type", "").partition(";")[0].strip() != FRAMES:
        return msgspec.json.decode(response.content, type=ClaimedBatch)
    from atroposlib.wire.binary import split_frames, unpack_group

    return ClaimedBatch(
        batch_no=int(response.headers.get("x-atropos-batch", "")),
        epoch=int(response.headers.get("x-atropos-epoch", "")),
        batch=[unpack_group(frame) for frame in split_frames(response.content)],
    )


def read_received(response: httpx.Response) -> Sent:
    """Decode the answer to POST /groups."""
    return Sent(**GroupsReceived.model_validate_json(response.content).model_dump())


def read_processed(response: httpx.Response) -> Sent:
    """Decode the answer to POST /scored_data_list, which has fewer fields."""
    body = mapping(response)
    return Sent(
        accepted=int(body["groups_processed"]),
        duplicates=int(body.get("duplicates", 0)),
        buffered=int(body.get("buffered", 0)),
    )


def _as_rows(group: Group) -> ScoredData | dict[str, Any]:
    if isinstance(group, (ScoredData, dict)):
        return group
    from atroposlib.wire.columns import to_group

    return to_group(group)


def _with_key(group: ScoredData | dict[str, Any], key: str) -> dict[str, Any]:
    """A copy of the group with an idempotency key; the caller's group is unchanged."""
    fields = dict(group) if isinstance(group, dict) else msgspec.structs.asdict(group)
    if fields.get("idempotency_key") is None:
        fields["idempotency_key"] = key
    return fields


def _plain(value: Any) -> Any:
    """Convert arrays and numbers of numpy or torch, without importing either."""
    to_list = getattr(value, "tolist", None)
    if to_list is None:
        raise TypeError(f"{type(value).__name__} has no place in a scored group")
    return to_list()

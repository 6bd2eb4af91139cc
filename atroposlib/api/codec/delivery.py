"""Transcoding of stored groups at delivery. Pure.

A few kilobytes can hold a group of 128 MB, and many clients may ask for it at once. So the
numbers of a large group are read from its payload as they are written, some at a time:

    payload -> BinaryGroup or LargeGroup -> (Masked) -> JSON, or an uncompressed file
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from math import prod
from typing import cast

import msgspec
import numpy as np

from atroposlib.api.codec.formats import WHOLE_BYTES
from atroposlib.api.codec.json_columns import KEYS, LargeGroup, parse_columns
from atroposlib.api.codec.row_facts import GroupFacts, facts_of
from atroposlib.api.common.records import BatchMember, Media, Payload
from atroposlib.errors import CorruptPayload, InvalidGroup
from atroposlib.wire import ScoredData
from atroposlib.wire.binary import (
    frame_head,
    inflated_size,
    is_zstd,
    pack_columns,
    unpack_columns,
)
from atroposlib.wire.binary_pieces import BinaryGroup, Numbers, Taken, file_of
from atroposlib.wire.columns import Columns, from_group, split_rows, to_group
from atroposlib.wire.images import IMAGES
from atroposlib.wire.messages import MASKED, MASKED_LOGPROB, MASKED_VERSION
from atroposlib.wire.safetensors import Array, MalformedBody

# Conversions hold Python's lock, so many at once would take memory and delay the event loop.
ONE_CONVERSION = threading.Lock()
_NUMBERS = 2**15  # that are Python objects at the same time
_FILL = {
    "masks": MASKED,
    "versions": MASKED_VERSION,
    "inference_logprobs": MASKED_LOGPROB,
}


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
    stale = min_version is not None and member.is_older_than(min_version)
    if is_stored_as(payload.media, form) and not stale:
        if form is Encoding.FRAMES:
            yield frame_head(len(payload.data))
        yield payload.data
        return
    try:
        versioned = member.version is not None
        mask_before = min_version if stale else None
        yield from one_at_a_time(_converted(payload, form, mask_before, versioned))
    except (InvalidGroup, MalformedBody, msgspec.DecodeError) as error:
        raise CorruptPayload([member.gid]) from error


def one_at_a_time(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The pieces; in this process one is made at a time."""
    while True:
        with ONE_CONVERSION:
            piece = next(pieces, None)
        if piece is None:
            return
        yield piece


def _converted(
    payload: Payload, form: Encoding, min_version: int | None = None, versioned: bool = False
) -> Iterator[bytes]:
    if _size(payload) <= WHOLE_BYTES:
        columns = read_columns(payload)
        if min_version is not None:
            columns = stale_masked(columns, min_version)
        if form is Encoding.JSON:
            yield msgspec.json.encode(to_group(columns))
        else:
            file = pack_columns(columns)
            yield frame_head(len(file))
            yield file
        return
    group = read_large(payload)
    if min_version is not None:
        group = Masked(group, min_version, versioned)
    if form is Encoding.JSON:
        yield from to_json(group)
    else:
        size, pieces = file_of(group)
        yield frame_head(size)
        yield from pieces


def _size(payload: Payload) -> int:
    """Bytes of the group, inflated."""
    return inflated_size(payload.data) if is_zstd(payload.data) else len(payload.data)


def read_columns(payload: Payload) -> Columns:
    """All numbers of a stored group.

    Raises:
        InvalidGroup, MalformedBody, msgspec.DecodeError: the payload is no group.
    """
    if payload.media is not Media.JSON:
        return unpack_columns(payload.data)
    if len(payload.data) > WHOLE_BYTES:
        return _held(read_large(payload))
    proven = parse_columns(payload.data)
    if proven is not None:
        return proven[0]
    return from_group(msgspec.json.decode(payload.data, type=ScoredData))


def stored_facts(payload: Payload) -> tuple[Columns, GroupFacts]:
    """A stored group, if large JSON without its entries per token, and the facts of its rows.

    Raises as :func:`read_columns`.
    """
    if payload.media is Media.JSON and len(payload.data) > WHOLE_BYTES:
        group = LargeGroup(payload.data)
        return group.head, facts_of(group.head, group.row_numbers())
    columns = read_columns(payload)
    return columns, facts_of(columns)


def latest_json(payload: Payload) -> Iterator[bytes]:
    """A stored binary group as JSON, in pieces."""
    return one_at_a_time(_converted(payload, Encoding.JSON))


# --- large groups -----------------------------------------------------------------------


def read_large(payload: Payload) -> Numbers:
    """A stored group, whose numbers are read from ``payload``. Raises as :func:`read_columns`."""
    if payload.media is not Media.JSON:
        return BinaryGroup(payload.data)
    group = LargeGroup(payload.data)
    if group.large_images is not None:
        group.head.rest[IMAGES] = cast(bytes, memoryview(payload.data)[group.large_images])
    return group


def _held(group: Numbers) -> Columns:
    """The group with its entries per token."""
    head, distilled = group.head, group.head.distilled

    def all_of(name: str) -> Array:
        return np.concatenate(list(group.numbers(name)))

    if distilled is not None:
        ids, logprobs = distilled.token_ids, distilled.logprobs
        ids = None if ids is None else all_of("distill_token_ids")
        logprobs = None if logprobs is None else all_of("distill_logprobs")
        distilled = replace(distilled, token_ids=ids, logprobs=logprobs)
    masks = all_of("masks")
    return replace(
        head,
        tokens=all_of("tokens"),
        trained=masks != MASKED,
        labels=masks,
        floats={name: all_of(name) for name in head.floats},
        versions=None if head.versions is None else all_of("versions"),
        distilled=distilled,
    )


class Masked:
    """A group with the tokens of versions before ``min_version`` masked.

    A group without versions is masked completely; call this for stale groups only.
    """

    def __init__(self, group: Numbers, min_version: int, versioned: bool) -> None:
        self.head, self.wide = group.head, group.wide
        self._group, self._min_version, self._versioned = group, min_version, versioned

    def numbers(self, name: str) -> Iterator[Array]:
        if name not in _FILL:
            yield from self._group.numbers(name)
            return
        versions = Taken(self._group.numbers("versions")) if self._versioned else None
        for values in self._group.numbers(name):
            known = None if versions is None else versions(len(values))
            yield _masked(name, values, known, self._min_version)


def _masked(name: str, values: Array, versions: Array | None, min_version: int) -> Array:
    """The values of a member, with those of older ``versions`` replaced; None: all of them."""
    stale: Array | bool = True
    if versions is not None:
        stale = (versions != MASKED_VERSION) & (versions < min_version)
    return np.where(stale, _FILL[name], values).astype(values.dtype)


def stale_masked(columns: Columns, min_version: int) -> Columns:
    """As :class:`Masked`."""
    versions = columns.versions if columns.version is not None else None
    floats = dict(columns.floats)
    if (logprobs := floats.get("inference_logprobs")) is not None:
        floats["inference_logprobs"] = _masked(
            "inference_logprobs", logprobs, versions, min_version
        )
    masks = _masked("masks", columns.masks, versions, min_version)
    if columns.versions is not None:
        new = _masked("versions", columns.versions, versions, min_version)
        columns = replace(columns, versions=new)
    return replace(columns, floats=floats, trained=masks != MASKED, labels=masks)


def to_json(group: Numbers) -> Iterator[bytes]:
    """JSON in pieces: every key of the record, in its order."""
    head, choices = group.head, group.head.distilled
    present = {"tokens", "masks", *head.floats}
    present |= {"versions"} if head.versions is not None else set()
    for name in ("token_ids", "logprobs"):
        if getattr(choices, name, None) is not None:
            present.add("distill_" + name)
    before = b"{"
    for name in KEYS:
        yield b'%s"%s":' % (before, name.encode())
        before = b","
        if name in present:
            yield from _rows(group, name)
        elif name == "scores":
            yield msgspec.json.encode(head.scores.tolist())
        elif name == "routed_experts" and head.routed_experts is not None:
            yield from _experts(group, head.routed_experts)
        else:
            value = head.rest.get(name)
            yield msgspec.json.encode(getattr(head, name, None)) if value is None else value
    yield b"}"


def _rows(group: Numbers, name: str) -> Iterator[bytes]:
    """A member with an entry per token: a number, or a list of the teacher's choices."""
    taken, distilled = Taken(group.numbers(name)), group.head.distilled
    counts = distilled.counts if distilled and name.startswith("distill_") else None
    step = _NUMBERS if counts is None else max(1, _NUMBERS // max(1, int(counts.max())))
    at = 0
    for g, length in enumerate(group.head.seq_lens.tolist()):
        for start in range(0, length, step):
            size = min(step, length - start)
            if counts is None:
                some = taken(size).tolist()
            else:
                few = counts[at : at + size]
                some = split_rows(taken(int(few.sum())).tolist(), few)
            at += size
            opening = b"," if start else b",[" if g else b"[["
            yield opening + msgspec.json.encode(some)[1:-1]
        yield b"]"
    yield b"]"


def _experts(group: Numbers, experts: Array) -> Iterator[bytes]:
    """Entries of all tokens of each row, in the type of ``experts``."""
    taken, shape = Taken(group.numbers("routed_experts")), experts.shape[1:]
    step = 3 * max(1, _NUMBERS // (3 * prod(shape)))  # base64 of three bytes needs no padding
    for g, length in enumerate(group.head.seq_lens.tolist()):
        opening = b"," if g else b"["
        yield b'%s{"shape":%s,"data":"' % (opening, msgspec.json.encode((length, *shape)))
        for at in range(0, length, step):
            some = taken(min(step, length - at) * prod(shape))
            yield base64.b64encode(some.tobytes())
        yield b'"}'
    yield b"]"

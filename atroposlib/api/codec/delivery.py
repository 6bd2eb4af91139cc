"""Encoding of stored groups at delivery. Pure.

A group leaves in frames as it is stored. A few kilobytes can hold a group of 128 MB, and many clients
may ask for it at once. So its other forms are made from some of its numbers at a time:

    payload -> PackedGroup -> (Masked) -> JSON, or an uncompressed file
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator, Sequence
from enum import Enum
from math import prod

import msgspec
import numpy as np
import orjson

from atroposlib.api.codec.formats import GROUPS_MEDIA, JSON_MEDIA, WHOLE_BYTES
from atroposlib.api.codec.json_group import KEYS
from atroposlib.api.common.records import BatchMember
from atroposlib.errors import CorruptPayload, InvalidGroup
from atroposlib.wire.binary import PackedGroup, frame_head
from atroposlib.wire.columns import split_rows
from atroposlib.wire.group_arrays import GroupArrays, TakenNumbers
from atroposlib.wire.messages import MASKED, MASKED_LOGPROB, MASKED_VERSION
from atroposlib.wire.packing import CHOICES, file_of
from atroposlib.wire.safetensors import Array, Bytes, MalformedBody

# Conversions hold Python's lock, so many at once would take memory and delay the event loop.
ONE_CONVERSION = threading.Lock()
_NUMBERS = 2**15  # numbers written at a time
_FILL = {
    "mask": 0,
    "labels": MASKED,
    "versions": MASKED_VERSION,
    "inference_logprobs": MASKED_LOGPROB,
}


class Encoding(Enum):
    """Encodings of a delivery."""

    JSON = JSON_MEDIA
    FRAMES = GROUPS_MEDIA  # each a safetensors file, or a zstd frame of a file


def accepted_encoding(accept: str) -> Encoding:
    """The encoding that an Accept header names; JSON by default."""
    for media in accept.lower().split(","):
        kind, _, parameters = media.partition(";")
        if kind.strip() == Encoding.FRAMES.value and parameters.replace(" ", "") != "q=0":
            return Encoding.FRAMES
    return Encoding.JSON


def encode_group(
    payload: Bytes, member: BatchMember, form: Encoding, min_version: int | None
) -> Iterator[Bytes]:
    """The group in ``form`` in pieces, with tokens older than ``min_version`` masked.

    Raises:
        CorruptPayload: the payload is no group, although its digest matches.
    """
    stale = min_version is not None and member.is_older_than(min_version)
    if form is Encoding.FRAMES and not stale:
        yield frame_head(len(payload))
        yield payload
        return
    try:
        group: GroupArrays = PackedGroup(payload, WHOLE_BYTES)
        if min_version is not None and stale:
            group = Masked(group, min_version, versioned=member.version is not None)
        yield from in_turn(to_json(group) if form is Encoding.JSON else _frame_of(group))
    except (InvalidGroup, MalformedBody) as error:
        raise CorruptPayload([member.gid]) from error


def json_of(payload: Bytes) -> Iterator[Bytes]:
    """A stored group as JSON, in pieces."""
    return in_turn(to_json(PackedGroup(payload, WHOLE_BYTES)))


def in_turn(pieces: Iterator[Bytes]) -> Iterator[Bytes]:
    """The pieces; a process makes a single piece at a time."""
    while True:
        with ONE_CONVERSION:
            piece = next(pieces, None)
        if piece is None:
            return
        yield piece


def _frame_of(group: GroupArrays) -> Iterator[Bytes]:
    size, pieces = file_of(group)
    yield frame_head(size)
    yield from pieces


class Masked:
    """A group with the tokens of versions before ``min_version`` masked.

    A group without versions is masked completely; call this for stale groups only.
    """

    def __init__(self, group: GroupArrays, min_version: int, versioned: bool) -> None:
        self.head = group.head
        self._group, self._min_version, self._versioned = group, min_version, versioned

    def chunks(self, name: str) -> Iterator[Array]:
        if name not in _FILL:
            yield from self._group.chunks(name)
            return
        versions = TakenNumbers(self._group.chunks("versions")) if self._versioned else None
        for values in self._group.chunks(name):
            stale: Array | bool = True
            if versions is not None:
                known = versions.take(len(values))
                stale = (known != MASKED_VERSION) & (known < self._min_version)
            yield np.where(stale, _FILL[name], values).astype(values.dtype)


# --- JSON ---------------------------------------------------------------------------------


def to_json(group: GroupArrays) -> Iterator[Bytes]:
    """JSON in pieces: every key of the record, in its order."""
    head = group.head
    arrays = head.arrays()
    before = b"{"
    for name in KEYS:
        yield b'%s"%s":' % (before, name.encode())
        before = b","
        if name == "scores":
            yield _dumps(head.scores)
        elif name == "masks":
            yield from _rows(group, _masks(group))
        elif name in CHOICES and name in arrays:
            yield from _rows_of_choices(group, name)
        elif name == "routed_experts" and head.routed_experts is not None:
            yield from _experts(group, head.routed_experts)
        elif name in arrays:
            yield from _rows(group, group.chunks(name))
        else:
            value = head.rest.get(name)
            yield msgspec.json.encode(getattr(head, name, None)) if value is None else value
    yield b"}"


def _dumps(values: object) -> bytes:
    return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)


def _masks(group: GroupArrays) -> Iterator[Array]:
    if group.head.labels is not None:
        yield from group.chunks("labels")
        return
    trained = TakenNumbers(group.chunks("mask"))
    for tokens in group.chunks("tokens"):
        yield np.where(trained.take(len(tokens)), tokens, np.int32(MASKED))


def _rows(group: GroupArrays, chunks: Iterator[Array]) -> Iterator[Bytes]:
    """A member with a number per token; short rows are written together."""
    numbers = TakenNumbers(chunks)
    opening = b"["
    lengths = group.head.seq_lens.tolist()
    for first, last in neighbours_within(_NUMBERS, lengths):
        size = sum(lengths[first:last])
        if size <= _NUMBERS:
            values = _exact_floats(numbers.take(size))
            ends = np.cumsum(lengths[first:last])[:-1]
            yield opening + _dumps(np.split(values, ends))[1:-1]
        else:
            for start in range(0, size, _NUMBERS):
                # A copy: what orjson returns keeps its larger buffer.
                part = _dumps(_exact_floats(numbers.take(min(_NUMBERS, size - start))))[1:-1]
                yield (b"," if start else opening + b"[") + part
            yield b"]"
        opening = b","
    yield b"]"


def neighbours_within(bound: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Neighbours of at most ``bound`` in all, as (first, last + 1); a larger member alone."""
    first, total = 0, 0
    for i, size in enumerate(sizes):
        if i > first and total + size > bound:
            yield first, i
            first, total = i, 0
        total += size
    yield first, len(sizes)


def _exact_floats(values: Array) -> Array:
    """Floats as float64: the text of a float32 is the text of another number."""
    return values.astype(np.float64) if values.dtype.kind == "f" else values


def _rows_of_choices(group: GroupArrays, name: str) -> Iterator[bytes]:
    """A member with a list of the teacher's choices per token."""
    distilled = group.head.distilled
    assert distilled is not None
    numbers, counts = TakenNumbers(group.chunks(name)), distilled.counts
    step = max(1, _NUMBERS // max(1, int(counts.max())))
    at = 0
    for g, length in enumerate(group.head.seq_lens.tolist()):
        for start in range(0, length, step):
            few = counts[at : at + min(step, length - start)]
            values = numbers.take(int(few.sum(dtype=np.int64))).tolist()
            at += len(few)
            opening = b"," if start else b",[" if g else b"[["
            yield opening + orjson.dumps(split_rows(values, few))[1:-1]
        yield b"]"
    yield b"]"


def _experts(group: GroupArrays, experts: Array) -> Iterator[bytes]:
    """Entries of all tokens of each row, in the type of ``experts``."""
    numbers, shape = TakenNumbers(group.chunks("routed_experts")), experts.shape[1:]
    step = 3 * max(1, _NUMBERS // (3 * prod(shape)))  # base64 of three bytes needs no padding
    for g, length in enumerate(group.head.seq_lens.tolist()):
        opening = b"," if g else b"["
        yield b'%s{"shape":%s,"data":"' % (opening, msgspec.json.encode((length, *shape)))
        for at in range(0, length, step):
            part = numbers.take(min(step, length - at) * prod(shape))
            yield base64.b64encode(part.tobytes())
        yield b'"}'
    yield b"]"

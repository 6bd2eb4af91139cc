"""Records of a journal, and their frames in the file. Pure.

    frame = length (u32), CRC-32 of the body (u32), body (MessagePack of a record)

A process that is killed leaves a torn last frame. Reading ends at the first frame that is not
whole, so a record counts with all of its bytes or not at all.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any, Union, cast

import msgspec

from atroposlib.generation.sampling.generation import UNKNOWN_VERSION

_HEAD = struct.Struct("<II")


class RunStarted(msgspec.Struct, frozen=True, tag="run"):
    """The run of all following records; samples of another run have no meaning in it."""

    run_id: str


class DataPlace(msgspec.Struct, frozen=True, tag="place"):
    """Position in the data: the number of items handed out, and those not ended."""

    next_place: int
    open_places: list[int]


class RolloutBegun(msgspec.Struct, frozen=True, tag="begun"):
    """An item is under way."""

    rollout: str
    task: str  # digest of the task: samples of a changed task are not used
    place: int | None = None  # if the environment counts its items
    # See ``encode_item``; None: the environment gives it again. With a place the number of the
    # task that a sampler chose for it.
    item: bytes | None = None


class SampleFinished(msgspec.Struct, frozen=True, tag="sample"):
    """A sample with its reward."""

    rollout: str
    payload: bytes
    oldest_version: int | None = None  # None: the servers name no versions
    tokens: int = 0  # returned by servers for this sample
    incarnation: int | None = None  # life of the trainer when its rollout began

    @property
    def account_entry(self) -> tuple[int, int, int]:
        """Version, tokens and number of samples, as an account counts."""
        version = self.oldest_version
        return UNKNOWN_VERSION if version is None else version, self.tokens, 1


class GroupsFinished(msgspec.Struct, frozen=True, tag="groups"):
    """Groups to be posted, in the binary form of the wire."""

    rollout: str
    groups: list[bytes]


class RolloutRepeated(msgspec.Struct, frozen=True, tag="repeated"):
    """The item is rolled out again, and its samples so far are not used."""

    rollout: str


class RolloutEnded(msgspec.Struct, frozen=True, tag="ended"):
    """The groups of an item were accepted or dropped: nothing of it is left to do."""

    rollout: str


class SamplerSaved(msgspec.Struct, frozen=True, tag="sampler"):
    """Snapshot of a sampler of tasks; earlier events are in it."""

    state: bytes
    events: int  # number of events up to here


class TaskDrawn(msgspec.Struct, frozen=True, tag="drawn"):
    """A sampler chose a task for a place."""

    place: int
    number: int


class GroupObserved(msgspec.Struct, frozen=True, tag="observed"):
    """A sampler observed the group of a task; without scores the rollout failed."""

    number: int | None
    scores: list[float]
    success: float | None
    tokens: int
    version: int
    rollout: str | None = None


SamplerEvent = Union[TaskDrawn, GroupObserved]
Record = Union[
    RunStarted,
    DataPlace,
    RolloutBegun,
    SampleFinished,
    GroupsFinished,
    RolloutRepeated,
    RolloutEnded,
    SamplerSaved,
    TaskDrawn,
    GroupObserved,
]
_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode_frame(record: Record) -> bytes:
    """The bytes of a record in the file."""
    body = _ENCODER.encode(record)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def whole_records(data: bytes) -> Iterator[tuple[Record, int]]:
    """The records of ``data`` with the end of each, up to the first frame that is not whole."""
    at = 0
    while at + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, at)
        begin = at + _HEAD.size
        end = begin + length
        body = data[begin:end]
        if len(body) < length or checksum != zlib.crc32(body):
            return
        try:
            record = _DECODER.decode(body)
        except msgspec.MsgspecError:  # a record of a newer release
            return
        yield record, end
        at = end


# --- items ------------------------------------------------------------------------------

_TUPLE, _FROZENSET = 1, 2  # codes of MessagePack's extension types
_PLAIN = (str, int, float, bool, bytes, type(None))


def encode_item(item: Any) -> bytes | None:
    """An item of an environment as bytes; None if it holds values of other types.

    Items of the original are often tuples and frozensets, which are kept apart from lists.
    """
    try:
        return _ENCODER.encode(_storable(item))
    except (TypeError, OverflowError, RecursionError):
        return None


def decode_item(data: bytes) -> Any:
    """The item of :func:`encode_item`."""
    return msgspec.msgpack.decode(data, ext_hook=_extension_value)


def _storable(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if type(value) is dict:
        return {_key(key): _storable(entry) for key, entry in value.items()}
    if type(value) is list:
        return [_storable(entry) for entry in value]
    if type(value) is tuple:
        return msgspec.msgpack.Ext(
            _TUPLE, _ENCODER.encode([_storable(entry) for entry in value])
        )
    if type(value) is frozenset:
        entries = [_storable(entry) for entry in sorted(value, key=repr)]
        return msgspec.msgpack.Ext(_FROZENSET, _ENCODER.encode(entries))
    raise TypeError(f"{type(value).__name__} has no stored form")


def _key(key: Any) -> Any:
    if type(key) not in (str, int):
        raise TypeError("keys are texts or integers")
    return key


def _extension_value(code: int, data: memoryview) -> Any:
    entries = cast(list[Any], msgspec.msgpack.decode(data, ext_hook=_extension_value))
    return frozenset(entries) if code == _FROZENSET else tuple(entries)

"""Binary encoding of groups: a safetensors file per group, many files as frames.

    tokens              I32 [T]   concatenated rows, T tokens in total
    seq_lens            I32 [G]   lengths of the rows
    mask                U8  [T]   1 where trained
    scores              F64 [G]   (read: any float type)
    labels              I32 [T]   optional: the JSON ``masks``, where a trained position
                                  has a different label than its token; -100 where masked
    versions            I32 [T]   optional
    inference_logprobs, ref_logprobs, advantages   F32 [T]   optional (read: any float type)
    distill_token_ids   I32 [T,K] optional; if positions have unequal numbers of choices,
    distill_logprobs    F32 [T,K]   both are [N] and distill_counts I32 [T] is present
    routed_experts      U8 or U16 [T,L,K] optional, see :mod:`~atroposlib.wire.routing`
    rest                U8  [n]   UTF-8 JSON object of all non-numeric fields, of
                                  advantages whose rows do not fit the tokens, and of a
                                  group_id that is too long for the header

``__metadata__`` holds ``format`` and, if the group has the field, ``env_id``, ``group_id``,
``idempotency_key`` and ``incarnation``. Scores are exact. Clients round other floats to float32
(values beyond its range stay float64); the store keeps JSON floats that float32 cannot hold as
F64. A file may be wrapped in a zstd frame with a declared content size. Frames are
concatenated ``u64 little-endian length | file``.
"""

from __future__ import annotations

import codecs
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import msgspec
import numpy as np
import zstandard

from atroposlib.errors import InvalidGroup
from atroposlib.wire import safetensors
from atroposlib.wire.columns import (
    check_probabilities,
    from_group,
    require_trainable,
    to_group,
)
from atroposlib.wire.group_arrays import (
    FLOATS,
    Columns,
    Distilled,
    joined_choices,
    without_values,
)
from atroposlib.wire.images import IMAGES, LARGE_IMAGES, LARGE_REST
from atroposlib.wire.messages import MASKED, ScoredData
from atroposlib.wire.packing import (
    CHOICES,
    FORMAT,
    IN_REST,
    TEXTS,
    as_float32,
    pack,
    with_floats,
)
from atroposlib.wire.safetensors import DTYPES, Array, Bytes, MalformedBody

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
MAX_GROUP_BYTES = 128 * 2**20  # largest file, inflated
MAX_FRAMES = 65_536
CHUNK_BYTES = 128 * 2**10  # portion of a large group that is read at a time
MAX_WINDOW_BYTES = 2**23
_LOOK_FIRST_BYTES = 2**20  # the header of a larger frame is checked before it is inflated

_ANY_FLOAT = ("F16", "F32", "F64")
ALLOWED = {
    "tokens": ("I32",),
    "seq_lens": ("I32",),
    "mask": ("U8",),
    "scores": _ANY_FLOAT,
    "labels": ("I32",),
    "versions": ("I32",),
    **dict.fromkeys(FLOATS, _ANY_FLOAT),
    "distill_counts": ("I32",),
    "distill_token_ids": ("I32",),
    "distill_logprobs": _ANY_FLOAT,
    "routed_experts": ("U8", "U16"),
    "rest": ("U8",),
}
_REQUIRED = ("tokens", "seq_lens", "mask", "scores")
_NOT_FLAT = (*CHOICES, "routed_experts")
_DISTILLED = {"distill_counts", *CHOICES}
# fields held in memory, also for a large group
_HELD = ("seq_lens", "scores", "distill_counts", "rest")
_COPIED = {IMAGES: LARGE_IMAGES}  # largest text that is copied out of a body
MAX_DIGITS = 4300  # limit of Python and msgspec for an integer
_REST = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Inflaters(threading.local):
    """Decompressor of each thread: a new object for each group costs as much as a small group."""

    def __init__(self) -> None:
        self.here = zstandard.ZstdDecompressor()


_inflaters = _Inflaters()


# --- single group ------------------------------------------------------------------------


def pack_group(group: ScoredData | dict[str, Any], *, compress: bool = True) -> bytes:
    """The group as bytes; a dict has the keys of :class:`ScoredData`.

    Raises:
        InvalidGroup: the group cannot be trained on.
    """
    if isinstance(group, dict):
        try:
            group = msgspec.convert(group, ScoredData)
        except msgspec.ValidationError as error:
            raise InvalidGroup("group", "", without_values(str(error))) from error
    return pack_columns(from_group(group), compress=compress)


def unpack_group(data: Bytes) -> ScoredData:
    """Decode a file, or a zstd frame that holds a file.

    Raises:
        MalformedBody: the data is neither.
        InvalidGroup: the group cannot be trained on.
    """
    return to_group(unpack_columns(data))


def pack_columns(columns: Columns, *, compress: bool = True) -> bytes:
    """Checked columns as bytes, with floats rounded to float32."""
    return pack(with_floats(columns, as_float32), compress_above=0 if compress else None)


def unpack_columns(data: Bytes) -> Columns:
    """Checked columns; the arrays are views of ``data`` if it is not compressed.

    Raises:
        MalformedBody, InvalidGroup: as for :func:`unpack_group`.
    """
    if is_zstd(data):
        size = frame_content_size(data)
        if size > _LOOK_FIRST_BYTES:  # rejects a decompression bomb early
            safetensors.read_header(beginning_of(data), size, ALLOWED)
        data = frame_content(data, size)
    header = safetensors.read_header(data, len(data), ALLOWED)
    columns = columns_of(safetensors.arrays(data, header), header.metadata)
    require_trainable(columns)
    if columns.labels is not None:
        check_probabilities(columns)
    return columns


# --- a file to a group -------------------------------------------------------------------


def columns_of(tensors: dict[str, Array], metadata: dict[str, str]) -> Columns:
    if metadata.get("format", FORMAT) != FORMAT:
        raise InvalidGroup("format", "", f"this reader knows {FORMAT}")
    for name in _REQUIRED:
        if name not in tensors:
            raise InvalidGroup(name, "", "missing")
    for name, values in tensors.items():
        if values.ndim != 1 and name not in _NOT_FLAT:
            raise InvalidGroup(name, "", "its shape does not fit")
    tokens, members = tensors["tokens"], _rest(tensors.get("rest"))
    texts = {name: _long_text(name, members.pop(name)) for name in TEXTS if name in members}
    named = metadata | texts
    return Columns(
        seq_lens=tensors["seq_lens"],
        tokens=tokens,
        trained=_trained_of(tokens, tensors["mask"], labels := tensors.get("labels")),
        labels=labels,
        scores=tensors["scores"].astype(np.float64),
        floats={name: tensors[name] for name in FLOATS if name in tensors},
        versions=tensors.get("versions"),
        distilled=None if _DISTILLED.isdisjoint(tensors) else _distilled_choices(tensors),
        routed_experts=tensors.get("routed_experts"),
        env_id=_number("env_id", metadata.get("env_id")),
        group_id=named.get("group_id"),
        idempotency_key=named.get("idempotency_key"),
        incarnation=_number("incarnation", metadata.get("incarnation")),
        rest=members,
    )


def _trained_of(tokens: Array, mask: Array, labels: Array | None) -> Array:
    if len(mask) != len(tokens) or (len(mask) and int(mask.max()) > 1):
        raise InvalidGroup("mask", "", "one 0 or 1 per token")
    trained = mask.view(np.bool_)
    if labels is not None and (
        len(labels) != len(tokens) or not np.array_equal(labels != MASKED, trained)
    ):
        raise InvalidGroup("labels", "", "one per token, -100 exactly where the mask is 0")
    return trained


def _distilled_choices(tensors: dict[str, Array]) -> Distilled | None:
    counts = tensors.get("distill_counts")
    token_ids = _choices("distill_token_ids", tensors, counts)
    logprobs = _choices("distill_logprobs", tensors, counts)
    if counts is not None and token_ids is None and logprobs is None:
        raise InvalidGroup("distill_counts", "", "there is nothing to count")
    return joined_choices(token_ids, logprobs)


def _choices(
    name: str, tensors: dict[str, Array], counts: Array | None
) -> tuple[Array, Array] | None:
    if (values := tensors.get(name)) is None:
        return None
    if (values.ndim == 2) == (counts is not None) or values.ndim > 2:
        raise InvalidGroup(name, "", "[T, K], or [N] with distill_counts")
    if counts is None:
        counts = np.full(values.shape[0], values.shape[1], np.int64)
    return counts, values.reshape(-1)


def _number(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    digits = text.removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > MAX_DIGITS:
        raise InvalidGroup(name, "", "not a decimal number")
    return int(text)


def _long_text(name: str, text: bytes) -> str:
    try:
        return msgspec.json.decode(text, type=str)
    except ValueError as error:
        raise InvalidGroup(name, "", "not a text") from error


def _rest(values: Array | None) -> dict[str, bytes]:
    if values is None:
        return {}
    data = np.ascontiguousarray(values).data
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(data), CHUNK_BYTES):
            decoder.decode(data[start : start + CHUNK_BYTES])
        decoder.decode(b"", True)
        members = _REST.decode(data)
    except (ValueError, RecursionError) as error:
        raise InvalidGroup("rest", "", "not a JSON object in UTF-8") from error
    for name in members:
        if name not in IN_REST and name in ScoredData.__struct_fields__:
            raise InvalidGroup("rest", "", "a key that does not belong there")
    # A key that the record does not have is ignored, as in JSON: a newer sender wrote it.
    views = {name: memoryview(raw) for name, raw in members.items() if name in IN_REST}
    texts = {
        name: bytes(view) if len(view) <= _COPIED.get(name, LARGE_REST) else cast(bytes, view)
        for name, view in views.items()
    }
    return {name: text for name, text in texts.items() if text != b"null"}


class PackedGroup:
    """A stored or posted file as :class:`GroupArrays`.

    A small file is inflated. Of a large zstd frame each array is inflated when it is read, up
    to its end, so that it takes memory for a chunk at a time. The values are not checked.

    Raises:
        MalformedBody, InvalidGroup: the header does not fit the file.
    """

    def __init__(self, data: Bytes, held_bytes: int = _LOOK_FIRST_BYTES) -> None:
        size, start = len(data), data
        self._zstd = is_zstd(data)
        if self._zstd:
            size = frame_content_size(data)
            if size <= held_bytes:
                start = data = frame_content(data, size)
                self._zstd = False
            else:
                start = beginning_of(data)
        self._data = data
        self._header = safetensors.read_header(start, size, ALLOWED)
        self.head = self._read_head()

    def chunks(self, name: str) -> Iterator[Array]:
        tensor = self._header.tensors[name]
        kind = np.dtype(DTYPES[tensor.dtype])
        for piece in self._bytes(name):
            yield np.frombuffer(piece, kind)

    def _read_head(self) -> Columns:
        tensors = self._header.tensors
        arrays = {}
        for name, tensor in tensors.items():
            kind = DTYPES[tensor.dtype]
            arrays[name] = np.empty((0, *tensor.shape[1:]), kind)
            if name in _HELD:
                arrays[name] = np.frombuffer(b"".join(self._bytes(name)), kind)
        head = columns_of(arrays, self._header.metadata)
        if head.distilled is not None and "distill_counts" not in tensors:
            shape = next(tensors[name].shape for name in CHOICES if name in tensors)
            counts = np.broadcast_to(np.int32(shape[1]), shape[:1])
            head = replace(head, distilled=replace(head.distilled, counts=counts))
        return head

    def _bytes(self, name: str) -> Iterator[bytes | memoryview]:
        offsets = self._header.tensors[name].data_offsets
        begin, end = (self._header.start + offset for offset in offsets)
        if not self._zstd:
            view = memoryview(self._data)
            for at in range(begin, end, CHUNK_BYTES):
                yield view[at : min(at + CHUNK_BYTES, end)]
            return
        inflater = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        with reject_damage(), inflater.stream_reader(self._data) as reader:
            reader.seek(begin)
            for at in range(begin, end, CHUNK_BYTES):
                yield reader.read(min(CHUNK_BYTES, end - at))


# --- zstd -------------------------------------------------------------------------------


def is_zstd(data: Bytes) -> bool:
    """Whether this is a zstd frame. As a safetensors header length it would be too large."""
    return bytes(data[:4]) == ZSTD_MAGIC


def frame_content_size(data: Bytes) -> int:
    """Declared content size of a zstd frame, in bytes.

    Raises:
        MalformedBody: damaged, without a content size, or larger than ``MAX_GROUP_BYTES``.
    """
    with reject_damage():
        frame = zstandard.get_frame_parameters(data)
    if frame.content_size > MAX_GROUP_BYTES or frame.dict_id:  # an unknown size is 2^64 - 1
        raise MalformedBody(f"a zstd frame tells its size, at most {MAX_GROUP_BYTES} bytes")
    return int(frame.content_size)


def beginning_of(data: Bytes) -> bytes:
    reader = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).stream_reader(data)
    with reject_damage():
        return bytes(reader.read(8 + safetensors.MAX_HEADER_BYTES))


def frame_content(data: Bytes, size: int) -> bytes:
    with reject_damage():
        content = _inflaters.here.decompress(data, allow_extra_data=False)
        if len(content) != size:
            raise zstandard.ZstdError("another size than declared")
    return bytes(content)


@contextmanager
def reject_damage() -> Iterator[None]:
    try:
        yield
    except zstandard.ZstdError as error:
        raise MalformedBody("damaged zstd frame") from error


# --- many groups ------------------------------------------------------------------------


FRAME_HEAD_BYTES = 8


def frame_head(size: int) -> bytes:
    """The length field before a file of ``size`` bytes."""
    return size.to_bytes(FRAME_HEAD_BYTES, "little")


def concatenate_frames(files: Iterable[bytes]) -> bytes:
    return b"".join(piece for file in files for piece in (frame_head(len(file)), file))


def split_frames(data: Bytes, max_frames: int = MAX_FRAMES) -> list[memoryview]:
    """Split frames into files, as views of ``data``.

    Raises:
        MalformedBody: truncated, or more than ``max_frames``.
    """
    view = memoryview(data)
    files: list[memoryview] = []
    start = 0
    while start < len(view):
        if start + 8 > len(view) or len(files) == max_frames:
            raise MalformedBody("frames cut short, or too many")
        size = int.from_bytes(view[start : start + 8], "little")
        start += 8 + size
        if start > len(view):
            raise MalformedBody("a frame is cut short")
        files.append(view[start - size : start])
    return files

"""Binary encoding of groups: one safetensors file each, many files as frames.

    tokens              I32 [T]   concatenated rows, T tokens in total
    seq_lens            I32 [G]   lengths of the rows
    mask                U8  [T]   1 where trained
    scores              F64 [G]   (read: any float type)
    labels              I32 [T]   optional: the JSON ``masks``, where a trained position
                                  has another label than its token; -100 where masked
    versions            I32 [T]   optional
    inference_logprobs, ref_logprobs, advantages   F32 [T]   optional (read: any float type)
    distill_token_ids   I32 [T,K] optional; if positions have unequal numbers of choices,
    distill_logprobs    F32 [T,K]   both are [N] and distill_counts I32 [T] is present
    routed_experts      U8 or U16 [T,L,K] optional, see :mod:`~atroposlib.wire.routing`
    rest                U8  [n]   UTF-8 JSON object of all non-numeric fields, and
                                  of advantages whose rows do not fit the tokens

``__metadata__`` holds ``format`` and, if the group has them, ``env_id``, ``group_id``,
``idempotency_key`` and ``incarnation``. Scores are exact; other floats are rounded to float32
(those beyond its range stay float64). A file may be wrapped in one zstd frame with a declared
content size. Frames are concatenated ``u64 little-endian length | file``.
"""

from __future__ import annotations

import codecs
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import msgspec
import numpy as np
import zstandard

from atroposlib.errors import InvalidGroup
from atroposlib.wire import safetensors
from atroposlib.wire.columns import (
    FLOATS,
    REST,
    Columns,
    Distilled,
    check,
    from_group,
    joined_choices,
    to_group,
    without_values,
)
from atroposlib.wire.images import LARGE_REST
from atroposlib.wire.messages import MASKED, ScoredData
from atroposlib.wire.safetensors import Array, Bytes, MalformedBody

FORMAT = "atropos-group/1"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_LEVEL = 1  # of numbers higher levels save nothing, and take twice the time to pack
MAX_GROUP_BYTES = 128 * 2**20  # of one file, inflated
MAX_FRAMES = 65_536
CHUNK_BYTES = 128 * 2**10  # of a large group, that are read at a time
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
CHOICES = ("distill_token_ids", "distill_logprobs")
_NOT_FLAT = (*CHOICES, "routed_experts")
_NAMED = ("env_id", "group_id", "idempotency_key", "incarnation")  # in the metadata
_REST = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Inflaters(threading.local):
    """One decompressor per thread: a new one for each group costs as much as a small group."""

    def __init__(self) -> None:
        self.here = zstandard.ZstdDecompressor()


_inflaters = _Inflaters()


# --- one group ------------------------------------------------------------------------


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
    """Decode a file, or a zstd frame of one.

    Raises:
        MalformedBody: the data is neither.
        InvalidGroup: the group cannot be trained on.
    """
    return to_group(unpack_columns(data))


def pack_columns(columns: Columns, *, compress: bool = True) -> bytes:
    """Checked columns as bytes."""
    data = safetensors.write(tensors_of(columns), metadata_of(columns))
    if not compress:
        return data
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True).compress(data)


def unpack_columns(data: Bytes) -> Columns:
    """Checked columns; the arrays are views of ``data`` if it is not compressed.

    Raises:
        MalformedBody, InvalidGroup: as for :func:`unpack_group`.
    """
    if is_zstd(data):
        size = inflated_size(data)
        if size > _LOOK_FIRST_BYTES:  # rejects a decompression bomb early
            safetensors.read_header(beginning_of(data), size, ALLOWED)
        data = _inflated(data, size)
    header = safetensors.read_header(data, len(data), ALLOWED)
    columns = columns_of(safetensors.arrays(data, header), header.metadata)
    check(columns)
    return columns


# --- columns to tensors and back ---------------------------------------------------------


def tensors_of(columns: Columns) -> dict[str, Array]:
    trained, labels = columns.trained, columns.labels
    tensors = {
        "tokens": columns.tokens.astype("<i4"),
        "seq_lens": columns.seq_lens.astype("<i4"),
        "mask": trained.astype("|u1"),
        "scores": columns.scores.astype("<f8"),
    }
    if labels is not None and not np.array_equal(labels[trained], columns.tokens[trained]):
        tensors["labels"] = labels.astype("<i4")
    if columns.versions is not None:
        tensors["versions"] = columns.versions.astype("<i4")
    for name, values in columns.floats.items():
        tensors[name] = _narrow(values)
    if columns.distilled is not None:
        tensors |= _distilled_tensors(columns.distilled)
    if columns.routed_experts is not None:
        tensors["routed_experts"] = columns.routed_experts
    if columns.rest:
        tensors["rest"] = np.frombuffer(b"".join(rest_pieces(columns.rest)), "|u1")
    return tensors


def rest_pieces(rest: dict[str, bytes]) -> list[bytes]:
    pieces: list[bytes] = []
    for name, value in rest.items():
        pieces += [b'%s"%s":' % (b"," if pieces else b"{", name.encode()), value]
    return [*pieces, b"}"]


def _narrow(values: Array) -> Array:
    beyond = len(values) and float(np.abs(values).max()) > float(np.finfo(np.float32).max)
    return values.astype("<f8" if beyond else "<f4")


def _distilled_tensors(distilled: Distilled) -> dict[str, Array]:
    counts = distilled.counts
    even = 0 < int(counts.min()) == int(counts.max())
    shape = (-1, int(counts[0])) if even else (-1,)
    tensors = {} if even else {"distill_counts": counts.astype("<i4")}
    if distilled.token_ids is not None:
        tensors["distill_token_ids"] = distilled.token_ids.astype("<i4").reshape(shape)
    if distilled.logprobs is not None:
        tensors["distill_logprobs"] = _narrow(distilled.logprobs).reshape(shape)
    return tensors


def metadata_of(columns: Columns) -> dict[str, str]:
    named = {name: getattr(columns, name) for name in _NAMED}
    given = {name: str(value) for name, value in named.items() if value is not None}
    return {"format": FORMAT} | given


def columns_of(tensors: dict[str, Array], metadata: dict[str, str]) -> Columns:
    if metadata.get("format", FORMAT) != FORMAT:
        raise InvalidGroup("format", "", f"this reader knows {FORMAT}")
    for name in _REQUIRED:
        if name not in tensors:
            raise InvalidGroup(name, "", "missing")
    for name, values in tensors.items():
        if values.ndim != 1 and name not in _NOT_FLAT:
            raise InvalidGroup(name, "", "its shape does not fit")
    tokens = tensors["tokens"]
    return Columns(
        seq_lens=tensors["seq_lens"],
        tokens=tokens,
        trained=trained_of(tokens, tensors["mask"], labels := tensors.get("labels")),
        labels=labels,
        scores=tensors["scores"].astype(np.float64),
        floats={name: tensors[name] for name in FLOATS if name in tensors},
        versions=tensors.get("versions"),
        distilled=_distilled(tensors),
        routed_experts=tensors.get("routed_experts"),
        env_id=_number("env_id", metadata.get("env_id")),
        group_id=metadata.get("group_id"),
        idempotency_key=metadata.get("idempotency_key"),
        incarnation=_number("incarnation", metadata.get("incarnation")),
        rest=_rest(tensors.get("rest")),
    )


def trained_of(tokens: Array, mask: Array, labels: Array | None) -> Array:
    if len(mask) != len(tokens) or (len(mask) and int(mask.max()) > 1):
        raise InvalidGroup("mask", "", "one 0 or 1 per token")
    trained = mask.view(np.bool_)
    if labels is not None and (
        len(labels) != len(tokens) or not np.array_equal(labels != MASKED, trained)
    ):
        raise InvalidGroup("labels", "", "one per token, -100 exactly where the mask is 0")
    return trained


def _distilled(tensors: dict[str, Array]) -> Distilled | None:
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
    if not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > 18:
        raise InvalidGroup(name, "", "not a decimal number")
    return int(text)


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
        if name not in REST and name in ScoredData.__struct_fields__:
            raise InvalidGroup("rest", "", "a key that does not belong there")
    # A key that the record does not have is ignored, as in JSON: a newer sender wrote it.
    views = {name: memoryview(one) for name, one in members.items() if name in REST}
    given = {
        name: bytes(one) if len(one) <= LARGE_REST else cast(bytes, one)
        for name, one in views.items()
    }
    return {name: one for name, one in given.items() if one != b"null"}


# --- zstd -------------------------------------------------------------------------------


def is_zstd(data: Bytes) -> bool:
    """Whether this is a zstd frame. As a safetensors header length it would be too large."""
    return bytes(data[:4]) == ZSTD_MAGIC


def inflated_size(data: Bytes) -> int:
    """Declared content size of a zstd frame, in bytes.

    Raises:
        MalformedBody: damaged, without a content size, or larger than ``MAX_GROUP_BYTES``.
    """
    with undamaged():
        frame = zstandard.get_frame_parameters(data)
    if frame.content_size > MAX_GROUP_BYTES or frame.dict_id:  # an unknown size is 2^64 - 1
        raise MalformedBody(f"a zstd frame tells its size, at most {MAX_GROUP_BYTES} bytes")
    return int(frame.content_size)


def beginning_of(data: Bytes) -> bytes:
    reader = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).stream_reader(data)
    with undamaged():
        return bytes(reader.read(8 + safetensors.MAX_HEADER_BYTES))


def _inflated(data: Bytes, size: int) -> bytes:
    with undamaged():
        inflated = _inflaters.here.decompress(data, allow_extra_data=False)
        if len(inflated) != size:
            raise zstandard.ZstdError("another size than declared")
    return bytes(inflated)


@contextmanager
def undamaged() -> Iterator[None]:
    try:
        yield
    except zstandard.ZstdError as error:
        raise MalformedBody("damaged zstd frame") from error


# --- many groups ------------------------------------------------------------------------


def frame_head(size: int) -> bytes:
    """The length field before a file of ``size`` bytes."""
    return size.to_bytes(8, "little")


def frames(files: Iterable[bytes]) -> bytes:
    """Concatenate files as frames."""
    return b"".join(piece for one in files for piece in (frame_head(len(one)), one))


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

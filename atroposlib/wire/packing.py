"""Writer of the binary encoding: a group whose arrays are in memory or read in chunks, to a file.

The format is described in :mod:`atroposlib.wire.binary`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import msgspec
import numpy as np
import zstandard

from atroposlib.errors import InvalidGroup
from atroposlib.wire import safetensors
from atroposlib.wire.group_arrays import (
    FLOATS,
    REST,
    Columns,
    Distilled,
    GroupArrays,
    TakenNumbers,
)
from atroposlib.wire.safetensors import Array

FORMAT = "atropos-group/1"
ZSTD_LEVEL = 1  # higher levels save nothing of numbers and take twice the time
CHOICES = ("distill_token_ids", "distill_logprobs")
TEXTS = ("group_id", "idempotency_key")
NAMED = ("env_id", *TEXTS, "incarnation")  # fields in the metadata
IN_REST = (*REST, *TEXTS)
MAX_NAMED_CHARACTERS = 2048  # the header has at most 64 KiB
# Order of arrays of the same width in a file.
_ORDER = (
    "tokens",
    "seq_lens",
    "mask",
    "scores",
    "labels",
    "versions",
    *FLOATS,
    "distill_counts",
    *CHOICES,
    "routed_experts",
    "rest",
)


def pack(
    group: GroupArrays, *, compress_above: int | None, max_bytes: int | None = None
) -> bytes:
    """A checked group as a file, or as a zstd frame if the file is larger than ``compress_above``.

    Raises:
        InvalidGroup: the file is larger than ``max_bytes``.
    """
    size, pieces = file_of(group)
    if max_bytes is not None and size > max_bytes:
        problem = f"its arrays take {size} bytes, more than {max_bytes}: send fewer rows"
        raise InvalidGroup("body", "", problem)
    if compress_above is None or size <= compress_above:
        return b"".join(pieces)
    packer = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)
    stream = packer.compressobj(size=size)
    packed = [stream.compress(piece) for piece in pieces]
    return b"".join([*packed, stream.flush()])


def file_of(group: GroupArrays) -> tuple[int, Iterator[bytes]]:
    """An uncompressed file of a checked group: its size in bytes, and its pieces."""
    head, held = group.head, _held_arrays(group.head)
    layout = {name: (values.dtype, values.shape) for name, values in held.items()}
    total = int(head.seq_lens.sum(dtype=np.int64))
    for name, values in head.arrays().items():
        shape = (total, *values.shape[1:])
        if name in CHOICES:
            shape = _shape_of_choices(cast(Distilled, head.distilled), held)
        layout[name] = (_written_type(name, values), shape)
    if head.labels is not None and _labels_are_tokens(group):
        del layout["labels"]
    rest = _rest_pieces(head)
    if rest:
        layout["rest"] = (np.dtype("|u1"), (sum(map(len, rest)),))
    ordered = sorted(layout, key=_ORDER.index)
    beginning, ordered, size = safetensors.begin(
        {name: layout[name] for name in ordered}, _metadata_of(head)
    )

    def pieces() -> Iterator[bytes]:
        yield beginning
        for name in ordered:
            if name == "rest":
                yield from rest
            elif name in held:
                yield held[name].tobytes()
            else:
                for values in group.chunks(name):
                    yield values.astype(layout[name][0], copy=False).tobytes()

    return size, pieces()


def _held_arrays(head: Columns) -> dict[str, Array]:
    """The arrays that a group always holds."""
    held = {"seq_lens": head.seq_lens.astype("<i4"), "scores": head.scores.astype("<f8")}
    if head.distilled is not None:
        counts = head.distilled.counts
        if not 0 < int(counts.min()) == int(counts.max()):
            held["distill_counts"] = counts.astype("<i4")
    return held


def _shape_of_choices(distilled: Distilled, held: Mapping[str, Array]) -> tuple[int, ...]:
    counts = distilled.counts
    if "distill_counts" in held:
        return (int(counts.sum(dtype=np.int64)),)
    return (len(counts), int(counts[0]))


def _written_type(name: str, values: Array) -> np.dtype[Any]:
    if name in ("mask", "routed_experts"):
        return np.dtype("|u1") if name == "mask" else values.dtype
    if values.dtype.kind == "f":
        return np.dtype("<f8" if values.dtype.itemsize == 8 else "<f4")
    return np.dtype("<i4")


def _labels_are_tokens(group: GroupArrays) -> bool:
    """Whether the label of each trained position is its token: then no labels are written."""
    labels, trained = TakenNumbers(group.chunks("labels")), TakenNumbers(group.chunks("mask"))
    for tokens in group.chunks("tokens"):
        differs = labels.take(len(tokens)) != tokens
        if (differs & (trained.take(len(tokens)) != 0)).any():
            return False
    return True


def _rest_pieces(head: Columns) -> list[bytes]:
    """The JSON object of the fields without an array, in pieces; [] without any."""
    texts = {name: getattr(head, name) for name in TEXTS}
    members = head.rest | {
        name: msgspec.json.encode(text) for name, text in texts.items() if _is_long(text)
    }
    pieces: list[bytes] = []
    for name, value in members.items():
        pieces += [b'%s"%s":' % (b"," if pieces else b"{", name.encode()), value]
    return [*pieces, b"}"] if pieces else []


def _is_long(value: object) -> bool:
    """Whether the header of a file may have no room for a text."""
    return isinstance(value, str) and len(value) > MAX_NAMED_CHARACTERS


def _metadata_of(head: Columns) -> dict[str, str]:
    named = {name: getattr(head, name) for name in NAMED}
    known = {
        name: str(value)
        for name, value in named.items()
        if value is not None and not _is_long(value)
    }
    return {"format": FORMAT} | known


def with_floats(columns: Columns, narrowed: Callable[[Array], Array]) -> Columns:
    """The columns with each array of floats but the scores as ``narrowed`` returns it."""
    floats = {name: narrowed(values) for name, values in columns.floats.items()}
    distilled = columns.distilled
    if distilled is not None and distilled.logprobs is not None:
        distilled = replace(distilled, logprobs=narrowed(distilled.logprobs))
    return replace(columns, floats=floats, distilled=distilled)


def as_float32(values: Array) -> Array:
    """The values as float32, unless a value is beyond its range."""
    beyond = len(values) and float(np.abs(values).max()) > float(np.finfo(np.float32).max)
    return values.astype("<f8" if beyond else "<f4", copy=False)


def exact(values: Array) -> Array:
    """The values as float32 if the conversion is exact, else unchanged."""
    with np.errstate(over="ignore"):
        narrow = values.astype("<f4", copy=False)
    return narrow if np.array_equal(narrow, values) else values

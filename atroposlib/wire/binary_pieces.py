"""Large binary groups in pieces: memory for some numbers at a time, not for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np
import zstandard

from atroposlib.wire import safetensors
from atroposlib.wire.binary import (
    ALLOWED,
    CHOICES,
    CHUNK_BYTES,
    MAX_WINDOW_BYTES,
    beginning_of,
    columns_of,
    inflated_size,
    is_zstd,
    metadata_of,
    rest_pieces,
    tensors_of,
    trained_of,
    undamaged,
)
from atroposlib.wire.columns import Columns
from atroposlib.wire.messages import MASKED
from atroposlib.wire.safetensors import DTYPES, Array

_HELD = {"seq_lens", "scores", "distill_counts"}  # in memory
_MEMBER = {"mask": "masks", "labels": "masks"}


class Numbers(Protocol):
    """A checked group whose entries per token are read in chunks, again each time."""

    head: Columns  # with empty arrays in place of these entries
    wide: set[str]  # floats beyond the range of float32

    def numbers(self, name: str) -> Iterator[Array]:
        """The entries of a member of ``head``, one behind the other."""


class BinaryGroup:
    """A large binary group as :class:`Numbers`: it is inflated for each member, up to there.

    Raises:
        MalformedBody, InvalidGroup: as for :func:`unpack_group`.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        self._data, self._zstd = data, is_zstd(data)
        start, size = (
            (beginning_of(data), inflated_size(data)) if self._zstd else (data, len(data))
        )
        self._header = safetensors.read_header(start, size, ALLOWED)
        known = self._header.tensors
        small = {}
        for name, tensor in known.items():
            kind, shape = DTYPES[tensor.dtype], tensor.shape
            if name in (*_HELD, "rest"):
                small[name] = np.frombuffer(b"".join(self._bytes(name)), kind)
            else:
                small[name] = np.empty((0, *shape[1:]), kind)
        self.head = head = columns_of(small, self._header.metadata)
        if head.distilled is not None and "distill_counts" not in small:
            shape = next(known[name].shape for name in CHOICES if name in known)
            counts = np.broadcast_to(np.int32(shape[1]), shape[:1])
            self.head = replace(head, distilled=replace(head.distilled, counts=counts))
        self.wide = {name for name, one in known.items() if one.dtype == "F64"}

    def numbers(self, name: str) -> Iterator[Array]:
        if name == "masks" and "labels" not in self._header.tensors:
            tokens, mask = self.numbers("tokens"), Taken(self.numbers("mask"))
            for some in tokens:
                trained = trained_of(some, mask(len(some)), None)
                yield np.where(trained, some, np.int32(MASKED))
            return
        name = "labels" if name == "masks" else name
        kind = np.dtype(DTYPES[self._header.tensors[name].dtype])
        for piece in self._bytes(name):
            yield np.frombuffer(piece, kind)

    def _bytes(self, name: str) -> Iterator[bytes | memoryview]:
        begin, end = (
            self._header.start + at for at in self._header.tensors[name].data_offsets
        )
        if not self._zstd:
            view = memoryview(self._data)
            for at in range(begin, end, CHUNK_BYTES):
                yield view[at : min(at + CHUNK_BYTES, end)]
            return
        inflater = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        with undamaged(), inflater.stream_reader(self._data) as reader:
            reader.seek(begin)
            for at in range(begin, end, CHUNK_BYTES):
                yield reader.read(min(CHUNK_BYTES, end - at))


def file_of(group: Numbers) -> tuple[int, Iterator[bytes]]:
    """An uncompressed file of the group: its size in bytes, and its pieces."""
    head = group.head
    held = tensors_of(replace(head, rest={}))
    held["labels"] = held["tokens"]
    lengths = dict.fromkeys(held, int(head.seq_lens.sum()))
    lengths |= {name: len(held[name]) for name in _HELD & held.keys()}
    if head.distilled is not None and "distill_counts" in held:
        lengths |= dict.fromkeys(CHOICES, int(head.distilled.counts.sum(dtype=np.int64)))
    layout = {
        name: (
            np.dtype("<f8" if name in group.wide else one.dtype),
            (lengths[name], *one.shape[1:]),
        )
        for name, one in held.items()
    }
    rest = rest_pieces(head.rest)
    if head.rest:
        layout["rest"] = np.dtype("|u1"), (sum(map(len, rest)),)
    beginning, ordered, size = safetensors.begin(layout, metadata_of(head))

    def pieces() -> Iterator[bytes]:
        yield beginning
        for name in ordered:
            if name == "rest":
                yield from rest
            elif name in _HELD:
                yield held[name].tobytes()
            else:
                for values in group.numbers(_MEMBER.get(name, name)):
                    values = values != MASKED if name == "mask" else values
                    yield values.astype(layout[name][0]).tobytes()

    return size, pieces()


class Taken:
    """The next so many of the numbers in ``chunks``."""

    def __init__(self, chunks: Iterator[Array]) -> None:
        self._chunks = chunks
        self._left: Array = np.empty(0, np.int32)

    def __call__(self, count: int) -> Array:
        parts = []
        while count:
            if not len(self._left):
                self._left = next(self._chunks)
            parts.append(self._left[:count])
            self._left = self._left[count:]
            count -= len(parts[-1])
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [self._left[:0]])

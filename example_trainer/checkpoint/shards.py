"""Shards of tensors: copied to main memory, written by their rank, read by slices.

    device --copy--> Shard in main memory --write--> <group>-<rank>-<n>.safetensors
                                              '----> index: which part lies in which file

The index has the shape of every whole tensor and the offsets of its parts, so that any number
of ranks reads what it needs. A digest of each file is computed from the bytes in memory.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from atroposlib.errors import CheckpointError
from example_trainer.distributed import collectives
from example_trainer.distributed.ranks import Ranks

FILE_BYTES = 2**30
FILES_AT_ONCE = 2  # the next is hashed while the disk takes a file
BLOCK_BYTES = 2**24  # a write; an abandoned checkpoint is noticed between writes
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPE_OF = {name: dtype for dtype, name in DTYPES.items()}


@dataclass(frozen=True)
class Shard:
    """A rank's part of a tensor, in main memory."""

    group: str  # "optimizer", for example
    name: str
    shape: tuple[int, ...]  # shape of the whole tensor
    offsets: tuple[int, ...]  # place of this part in the whole
    values: Tensor  # contiguous


class HostCopies:
    """Copies of a rank's shards in main memory; each checkpoint overwrites the last copies.

    Memory that is allocated anew costs as much time as the copy.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str], Tensor] = {}

    def take(self, groups: Mapping[str, Mapping[str, Tensor]], world: Ranks) -> list[Shard]:
        """Copy what this rank writes: its shards, and on rank 0 what every rank has whole."""
        shards: list[Shard] = []
        used: dict[tuple[str, str], Tensor] = {}
        for group, tensors in groups.items():
            for name, tensor in tensors.items():
                if not collectives.holds_first_copy(tensor, world):
                    continue
                part = collectives.local_shard(tensor)
                if tensor.numel() and not part.numel():
                    continue  # fewer rows than ranks
                buffer = self._buffer((group, name), part)
                buffer.copy_(part)
                used[group, name] = buffer
                offsets = tuple(span.start for span in collectives.local_slices(tensor))
                shards.append(Shard(group, name, tuple(tensor.shape), offsets, buffer))
        self._buffers = used
        return shards

    def _buffer(self, key: tuple[str, str], part: Tensor) -> Tensor:
        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != part.shape or buffer.dtype != part.dtype:
            buffer = torch.empty(part.shape, dtype=part.dtype, device="cpu")
        return buffer


@dataclass
class Written:
    """Files that a rank wrote, as JSON: their sizes and digests, and where tensors lie."""

    files: dict[str, dict[str, int | str]] = field(default_factory=dict)
    index: dict[str, dict[str, Any]] = field(default_factory=dict)  # keys: group, tensor

    def add(self, other: Written) -> None:
        """Add the files of another rank."""
        self.files.update(other.files)
        for group, tensors in other.index.items():
            ours = self.index.setdefault(group, {})
            for name, entry in tensors.items():
                parts = entry["parts"]
                ours.setdefault(name, {**entry, "parts": []})["parts"].extend(parts)


def write_shards(
    directory: Path, rank: int, shards: Sequence[Shard], proceed: Callable[[], None]
) -> Written:
    """Write and sync the files of a rank, of at most ``FILE_BYTES`` unless a shard is larger.

    Args:
        proceed: called between blocks; raises to abandon the checkpoint.
    """
    numbers: dict[str, int] = {}
    batches: dict[str, list[Shard]] = {}
    for group, batch in _batches(shards):
        number = numbers[group] = numbers.get(group, -1) + 1
        batches[f"{group}-{rank:05d}-{number:05d}.safetensors"] = batch
    with ThreadPoolExecutor(FILES_AT_ONCE) as pool:
        write = partial(_write_file, proceed=proceed)
        entries = pool.map(write, [directory / name for name in batches], batches.values())
        written = Written(dict(zip(batches, entries)))
    for name, batch in batches.items():
        for shard in batch:
            place = {"file": name, "offsets": shard.offsets, "shape": list(shard.values.shape)}
            entry = {
                "dtype": DTYPES[shard.values.dtype],
                "shape": list(shard.shape),
                "parts": [place],
            }
            written.add(Written(index={shard.group: {shard.name: entry}}))
    return written


def write_json(path: Path, document: Any) -> dict[str, int | str]:
    """Write a JSON document; return its entry of the manifest."""
    content = json.dumps(document, indent=1, allow_nan=False).encode()
    path.write_bytes(content)
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _batches(shards: Sequence[Shard]) -> Iterator[tuple[str, list[Shard]]]:
    """Yield the shards of each file, all of the same group."""
    batch: list[Shard] = []
    size = 0
    for shard in shards:
        full = size + shard.values.nbytes > FILE_BYTES
        if batch and (full or batch[0].group != shard.group):
            yield batch[0].group, batch
            batch, size = [], 0
        batch.append(shard)
        size += shard.values.nbytes
    if batch:
        yield batch[0].group, batch


def _write_file(
    path: Path, shards: Sequence[Shard], proceed: Callable[[], None]
) -> dict[str, int | str]:
    """Write a safetensors file; return its entry of the manifest."""
    # Wide types first, so that each tensor is aligned.
    ordered = sorted(shards, key=lambda shard: -shard.values.element_size())
    header: dict[str, Any] = {}
    offset = 0
    for shard in ordered:
        end = offset + shard.values.nbytes
        header[shard.name] = {
            "dtype": DTYPES[shard.values.dtype],
            "shape": list(shard.values.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    beginning = memoryview(len(head).to_bytes(8, "little") + head)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for content in (beginning, *map(_bytes, ordered)):
            for start in range(0, len(content), BLOCK_BYTES):
                proceed()
                block = content[start : start + BLOCK_BYTES]
                digest.update(block)
                file.write(block)
        size = file.tell()
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": digest.hexdigest()}


def _bytes(shard: Shard) -> memoryview:
    return shard.values.reshape(-1).view(torch.uint8).numpy().data


# --- reading ----------------------------------------------------------------------------


class StoredTensor:
    """A whole tensor in a checkpoint. ``stored[()]`` reads all of it, slices a part.

    Raises CheckpointError if a file cannot be read or a part is missing.
    """

    def __init__(self, directory: Path, name: str, entry: Mapping[str, Any]) -> None:
        self._directory, self._name, self._parts = directory, name, entry["parts"]
        self.shape = torch.Size(entry["shape"])
        self.dtype = DTYPE_OF[entry["dtype"]]

    def __getitem__(self, slices: tuple[slice, ...]) -> Tensor:
        spans = [span.indices(size)[:2] for span, size in zip(slices, self.shape)]
        bounds = spans + [(0, size) for size in self.shape[len(spans) :]]
        whole = torch.empty([stop - start for start, stop in bounds], dtype=self.dtype)
        copied = 0
        for part in self._parts:
            begins = part["offsets"]
            ends = [begin + size for begin, size in zip(begins, part["shape"])]
            common = [
                (max(start, begin), min(stop, end))
                for (start, stop), begin, end in zip(bounds, begins, ends)
            ]
            if any(start >= stop for start, stop in common):
                continue
            inside = tuple(
                slice(a - begin, b - begin) for (a, b), begin in zip(common, begins)
            )
            target = tuple(
                slice(a - start, b - start) for (a, b), (start, _) in zip(common, bounds)
            )
            whole[target] = self._read(part["file"], inside)
            copied += prod(stop - start for start, stop in common)
        if copied != whole.numel():
            raise CheckpointError(
                f"{self._directory}: {copied} of {whole.numel()} values of {self._name} are there"
            )
        return whole

    def _read(self, file: str, inside: tuple[slice, ...]) -> Tensor:
        path = self._directory / file
        try:
            with safe_open(path, framework="pt") as reader:
                if not inside:
                    return reader.get_tensor(self._name)  # type: ignore[no-any-return]
                return reader.get_slice(self._name)[inside]  # type: ignore[no-any-return]
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error


def headers_index(directory: Path, group: str) -> dict[str, Any]:
    """Index of files that lack it: format 1 has whole tensors, each in a single file.

    Raises CheckpointError if a file cannot be read.
    """
    index: dict[str, Any] = {}
    for path in sorted(directory.glob(f"{group}-*.safetensors")):
        try:
            with safe_open(path, framework="pt") as reader:
                for name in reader.keys():
                    part = reader.get_slice(name)
                    shape = part.get_shape()
                    place = {"file": path.name, "offsets": [0] * len(shape), "shape": shape}
                    entry = {"dtype": part.get_dtype(), "shape": shape, "parts": [place]}
                    index[name] = entry
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
    return index

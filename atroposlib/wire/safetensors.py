"""Reader and writer of the safetensors format for the dtypes of a scored group.

    u64 little-endian length of the header | JSON header | the arrays, without gap or overlap

The header determines names, types, shapes and lengths, so it is checked before the arrays
are inflated. The ``safetensors`` libraries can open these files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from atroposlib.errors import InvalidGroup

Array = NDArray[Any]
Bytes = bytes | bytearray | memoryview

MAX_HEADER_BYTES = 64 * 2**10
DTYPES = {"I32": "<i4", "U8": "|u1", "U16": "<u2", "F16": "<f2", "F32": "<f4", "F64": "<f8"}
_NAME_OF = {np.dtype(code): name for name, code in DTYPES.items()}


class MalformedBody(ValueError):
    """The body or file is not of its declared format, so the error names no field."""


class Tensor(msgspec.Struct, forbid_unknown_fields=True):
    """Entry of the header; offsets count from its end."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Header:
    """A header that fits its file."""

    start: int  # first byte of the arrays in the file
    tensors: dict[str, Tensor]
    metadata: dict[str, str]


_OFFSETS = b'"data_offsets"'
_HEADER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TENSOR = msgspec.json.Decoder(Tensor)
_METADATA = msgspec.json.Decoder(dict[str, str])


def write_tensors(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """Encode a file."""
    layout = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    beginning, ordered, _ = begin(layout, metadata)
    return b"".join([beginning, *(arrays[name].tobytes() for name in ordered)])


def begin(
    layout: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, list[str], int]:
    """All before the arrays of these types and shapes, the order of these, the size of the file.

    Wide types come first, so that each array is aligned.
    """
    ordered = sorted(layout, key=lambda name: -layout[name][0].itemsize)
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name in ordered:
        kind, shape = layout[name]
        end = offset + prod(shape) * kind.itemsize
        header[name] = {
            "dtype": _NAME_OF[kind],
            "shape": shape,
            "data_offsets": (offset, end),
        }
        offset = end
    head = msgspec.json.encode(header)
    head += b" " * (-len(head) % 8)
    beginning = len(head).to_bytes(8, "little") + head
    return beginning, ordered, len(beginning) + offset


def read_header(beginning: Bytes, size: int, allowed: Mapping[str, Collection[str]]) -> Header:
    """Parse the header of a file of ``size`` bytes; ``beginning`` must contain it.

    Args:
        allowed: the types that each tensor may have.

    Raises:
        MalformedBody: not a safetensors file, or its arrays do not fill it exactly.
        InvalidGroup: a tensor that is not allowed, or whose shape does not fit its bytes.
    """
    length = int.from_bytes(beginning[:8], "little") if len(beginning) >= 8 else 0
    start = 8 + length
    if not 2 <= length <= MAX_HEADER_BYTES or start > min(len(beginning), size):
        raise MalformedBody("not a safetensors file: its header has no usable length")
    head = bytes(beginning[8:start])
    try:
        raw = _HEADER.decode(head)
        named = raw.pop("__metadata__", msgspec.Raw(b"{}"))
        metadata = _METADATA.decode(named)
        tensors = {name: _TENSOR.decode(value) for name, value in raw.items()}
    except (ValueError, RecursionError) as error:
        raise MalformedBody("not a safetensors file: its header cannot be read") from error
    entries = head.count(_OFFSETS) - bytes(named).count(_OFFSETS)
    if head[:1] != b"{" or entries != len(tensors):  # a name twice
        raise MalformedBody("not a safetensors file: its header is not canonical")
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        if tensor.dtype not in allowed.get(name, ()):
            known = name if name in allowed else "header"
            raise InvalidGroup(known, "", "a tensor or type that the record does not have")
        begin, stop = tensor.data_offsets
        if begin != end or stop < begin:
            raise MalformedBody("the arrays overlap or leave a gap")
        wanted = prod(tensor.shape) * np.dtype(DTYPES[tensor.dtype]).itemsize
        if min(tensor.shape, default=0) < 0 or wanted != stop - begin:
            raise InvalidGroup(name, "", "its shape does not fit its bytes")
        end = stop
    if start + end != size:
        raise MalformedBody("the arrays do not fill the file")
    return Header(start, tensors, metadata)


def arrays(data: Bytes, header: Header) -> dict[str, Array]:
    """The arrays as read-only views of the file."""
    return {
        name: np.frombuffer(
            data, DTYPES[entry.dtype], prod(entry.shape), header.start + entry.data_offsets[0]
        ).reshape(entry.shape)
        for name, entry in header.tensors.items()
    }

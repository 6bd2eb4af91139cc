"""Notes of a trainer about a batch: a safetensors file per group, sent as frames.

    counts        I32 [G]   trained tokens of each row, N in total
    advantages    F32 [N]   NaN where the step computed none
    logprobs      F16 [N]   of the policy before the step that trained the row; NaN likewise
    flags         U8  [N]   bits: 1 clipped, 2 too old for the loss, 4 filtered out of the loss
    diff_mean     F32 [G]   mean of abs(trainer - sampler) over a row, nats; NaN: not known
    diff_max      F32 [G]   largest of it
    reasons       U8  [n]   JSON list of G: why a row had no effect, or null

``__metadata__`` holds ``format`` and ``member``, the place of the group in the batch as it was
delivered. Rows without notes have a count of 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np

from atroposlib.errors import InvalidGroup
from atroposlib.wire import safetensors
from atroposlib.wire.safetensors import DTYPES, Array

FORMAT = "atropos-notes/1"
CLIPPED, TOO_OLD, FILTERED = 1, 2, 4
_PER_TOKEN = {"advantages": "F32", "logprobs": "F16", "flags": "U8"}
_PER_ROW = {"counts": "I32", "diff_mean": "F32", "diff_max": "F32"}
_TYPES = {**_PER_TOKEN, **_PER_ROW, "reasons": "U8"}
_FLOATS = ("F32", "F16")
_MEMBER = re.compile(r"[0-9]{1,8}")
_REASONS = msgspec.json.Decoder(list[Annotated[str, msgspec.Meta(max_length=100)] | None])


@dataclass(frozen=True)
class GroupNotes:
    """Notes about a group of a batch; arrays as in the file."""

    member: int
    counts: Array
    advantages: Array
    logprobs: Array
    flags: Array
    diff_mean: Array
    diff_max: Array
    reasons: list[str | None]

    @classmethod
    def empty(cls, member: int, counts: Sequence[int]) -> GroupNotes:
        """Notes to be filled in: nothing is known, no flag is set."""
        sizes = dict.fromkeys(_PER_TOKEN, sum(counts)) | dict.fromkeys(_PER_ROW, len(counts))
        arrays = {
            name: np.full(sizes[name], np.nan if kind in _FLOATS else 0, DTYPES[kind])
            for name, kind in (_PER_TOKEN | _PER_ROW).items()
        }
        arrays["counts"][:] = counts
        return cls(member, reasons=[None] * len(counts), **arrays)

    def of_row(self, g: int) -> tuple[Array, Array, Array]:
        """Advantages, logprobs and flags of a row, as views."""
        end = int(self.counts[: g + 1].sum())
        span = slice(end - int(self.counts[g]), end)
        return self.advantages[span], self.logprobs[span], self.flags[span]


def pack_notes(notes: GroupNotes) -> bytes:
    arrays = {name: getattr(notes, name) for name in _PER_TOKEN | _PER_ROW}
    arrays["reasons"] = np.frombuffer(msgspec.json.encode(notes.reasons), "|u1")
    return safetensors.write_tensors(arrays, {"format": FORMAT, "member": str(notes.member)})


def unpack_notes(data: bytes | memoryview) -> GroupNotes:
    """The notes in a file; its arrays are views of ``data``.

    Raises:
        MalformedBody: not a safetensors file.
        InvalidGroup: no notes of a group; names the field.
    """
    header = safetensors.read_header(data, len(data), {n: (t,) for n, t in _TYPES.items()})
    arrays: dict[str, Any] = safetensors.arrays(data, header)
    member = header.metadata.get("member", "")
    if header.metadata.get("format") != FORMAT or not _MEMBER.fullmatch(member):
        raise InvalidGroup("format", "", f"this reader knows {FORMAT}, with a member")
    for name in _TYPES:
        if name not in arrays or arrays[name].ndim != 1:
            raise InvalidGroup(name, "", "missing, or its shape does not fit")
    counts = arrays["counts"]
    N = int(counts.sum(dtype=np.int64)) if counts.min(initial=0) >= 0 else -1
    for name in _PER_TOKEN | _PER_ROW:
        if len(arrays[name]) != (N if name in _PER_TOKEN else len(counts)):
            raise InvalidGroup(name, "", "its length does not fit the counts")
    try:
        reasons = _REASONS.decode(arrays.pop("reasons").tobytes())
    except (ValueError, RecursionError) as error:
        raise InvalidGroup("reasons", "", "a JSON list of words and nulls") from error
    if len(reasons) != len(counts):
        raise InvalidGroup("reasons", "", "one per row")
    return GroupNotes(int(member), reasons=reasons, **arrays)

"""Routed experts: the experts that each mixture-of-experts layer chose for a token.

    a row in JSON       {"shape": [t, L, K], "data": base64}   its tokens [0, t), t <= T
    a group in binary   (T, L, K) uint8 or uint16              its rows in order

L layers of K experts each, little-endian. The largest value of the type means "not known":
that token is routed by the model, as are tokens from t on. Elsewhere it is -1, in arrays of
int16.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
from typing_extensions import TypedDict  # pydantic refuses that of Python below 3.12

from atroposlib.errors import InvalidGroup, TokensMissing
from atroposlib.wire.safetensors import Array

MAX_PER_TOKEN = 4096  # L * K
MAX_PER_GROUP = 2**27  # T * L * K
# bytes besides 4 times the entries: tokens without experts take space too
SPARSE_BYTES = 2**24


class RoutedExperts(TypedDict):
    """Experts of the first tokens of a row: {"shape": [2, 1, 2], "data": "AAEDAg=="}."""

    shape: list[int]  # [t, L, K]
    data: str  # base64, 1 or 2 bytes for each


def experts_entry(experts: Array) -> RoutedExperts:
    """``experts`` (t, L, K), ints, -1 where not known, in the narrower type."""
    data = base64.b64encode(_narrow_form(experts).tobytes()).decode()
    return {"shape": list(experts.shape), "data": data}


def experts_array(routed: RoutedExperts) -> Array:
    """(t, L, K) int16, -1 where not known. Raises InvalidGroup if the data have another shape."""
    shape = routed["shape"]
    try:
        data = base64.b64decode(routed["data"], validate=True)
        kind = {prod(shape): "|u1", 2 * prod(shape): "<u2"}[len(data)] if data else "|u1"
        return wide_form(require_experts(np.frombuffer(data, kind).reshape(shape)))
    except (KeyError, ValueError) as error:
        raise _invalid("base64 of 1 or 2 bytes per entry of the shape") from error


def require_experts(experts: Array) -> Array:
    """``experts``, unchanged; raises InvalidGroup unless it is (t, L, K) and of a bounded size."""
    if experts.ndim != 3 or not 1 <= prod(experts.shape[1:]) <= MAX_PER_TOKEN:
        raise _invalid(f"[tokens, layers, experts], at most {MAX_PER_TOKEN} per token")
    return experts


def _narrowest(*parts: Array) -> str:
    """The narrower type that has room for all experts and the value for "not known"."""
    return "|u1" if all(part.max(initial=0) < 255 for part in parts) else "<u2"


def _narrow_form(experts: Array) -> Array:
    return np.maximum(experts, -1).astype(_narrowest(experts))


def wide_form(experts: Array) -> Array:
    """Experts of the wire as int16, -1 where not known."""
    wide = experts.astype(np.int16)  # 65535 becomes -1
    return np.where(
        (wide < 0) | (experts == 255) & (experts.itemsize == 1), np.int16(-1), wide
    )


def _invalid(problem: str) -> InvalidGroup:
    return InvalidGroup("routed_experts", "", problem)


def join_experts(
    *parts: tuple[int, RoutedExperts | None], start: int = 0, end: int | None = None
) -> RoutedExperts | None:
    """Tokens [start, end) of parts (first token, experts); of several for a token the first."""
    known = [(at, experts_array(experts)) for at, experts in parts if experts is not None]
    length = max((at + len(experts) for at, experts in known), default=0)
    return experts_entry(_merge_parts(known, length)[start:end]) if known else None


def _merge_parts(
    parts: Sequence[tuple[int, Array]], length: int, kind: Any = np.int16
) -> Array:
    shape = (length, *parts[0][1].shape[1:])
    if prod(shape) > MAX_PER_GROUP or any(part.shape[1:] != shape[1:] for _, part in parts):
        raise _invalid(f"rows of one number of layers and experts, {MAX_PER_GROUP} in all")
    whole = np.full(shape, np.array(-1).astype(kind), kind)  # the largest value if unsigned
    for at, part in reversed(parts):
        whole[at : at + len(part)] = part
    return whole


def stack(rows: Sequence[RoutedExperts | None], seq_lens: Array) -> Array | None:
    """(T, L, K) uint8 or uint16 of the rows of a group; None if no row has experts."""
    known = [None if row is None else experts_array(row) for row in rows]
    counts = np.array([0 if row is None else len(row) for row in known])
    if len(rows) != len(seq_lens) or (counts > seq_lens).any():
        raise _invalid("an entry or null per row, of at most its tokens")
    starts = np.cumsum(seq_lens) - seq_lens
    parts = [(int(start), row) for start, row in zip(starts, known) if row is not None]
    if not parts:
        return None
    kind = np.dtype(_narrowest(*(part for _, part in parts)))
    total, entries = int(seq_lens.sum()), sum(part.size for _, part in parts)
    dense = total * prod(parts[0][1].shape[1:])
    if dense * kind.itemsize > SPARSE_BYTES + 4 * entries * kind.itemsize:
        named = f"experts of {counts.sum()} of {total} tokens"
        raise _invalid(f"{named} are too few for {dense} entries: leave the field out")
    return _merge_parts(parts, total, kind)


def unstack(experts: Array, seq_lens: Array) -> list[RoutedExperts | None]:
    """Entries of the rows of a group, without unknown ends; None where nothing is known."""
    entries: list[RoutedExperts | None] = []
    for narrow in np.split(experts, np.cumsum(seq_lens)[:-1]):
        row = wide_form(narrow)
        end = np.flatnonzero((row >= 0).any((1, 2))).max(initial=-1) + 1
        entries.append(experts_entry(row[:end]) if end else None)
    return entries


def experts_of(data: str, num_tokens: int) -> RoutedExperts:
    """Decode an engine's base64: vLLM's .npy file, or SGLang's int32 of all tokens but the last.

    Raises TokensMissing if it cannot be read. SGLang's layers and experts share a dimension.
    """
    try:
        raw = base64.b64decode(data, validate=True)
        if raw[:6] == b"\x93NUMPY":
            return experts_entry(
                require_experts(np.load(BytesIO(raw)).astype(np.int64, casting="safe"))
            )
        return experts_entry(np.frombuffer(raw, "<i4").reshape(num_tokens - 1, 1, -1))
    except (InvalidGroup, TypeError, ValueError) as error:
        raise TokensMissing(f"routed_experts cannot be read: {error}") from error

"""Keys and values of all running sequences: a row each, column = position.

R rows, C columns, B active rows (always 0 .. B-1), L the longest active length,
H key/value heads, D head size.

    storage of a layer   (R, C, H, D)   token-major, so a decode step writes B
    a decode view         (B, H, L, D)   contiguous pieces and attention reads a slice

Because column equals position, joining a batch moves nothing: a new row is written from
column 0 while the remaining rows continue. Columns past a row's length hold stale but finite
numbers; the mask hides these numbers (zeros at first, since 0 * NaN would be NaN).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

COLUMN_STEP = 64  # columns are added in steps, so that growth copies rarely


@dataclass(slots=True)
class PrefillWrite:
    """Whole prompts from column 0. Prompt ``source[i]`` goes to row ``rows[i]``."""

    rows: Tensor  # (k,)
    source: Tensor  # (k,)


@dataclass(slots=True)
class DecodeWrite:
    """Write of a token for each of the first ``num_rows`` rows."""

    flat: Tensor  # (B,) row * C + column
    num_rows: int
    width: int  # L, columns the view shows


class SlotLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Storage of an attention layer, allocated at the first write."""

    is_compileable = False
    is_sliding = False

    def __init__(self, shared: SlotCache) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shared = shared
        self.keys: Tensor = torch.zeros(0)
        self.values: Tensor = torch.zeros(0)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = self.shared.dtype, key_states.device
        rows, columns = self.shared.num_rows, self.shared.num_columns
        self.keys, self.values = (
            states.new_zeros(rows, columns, states.shape[1], states.shape[3], dtype=self.dtype)
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store new (P or B, H, T, D) states; return the keys and values for attention."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        # Rotated keys of a float32 residual stream are float32; attention rounds keys anyway.
        key_states, value_states = key_states.to(self.dtype), value_states.to(self.dtype)
        write = self.shared.write
        if isinstance(write, PrefillWrite):
            length = key_states.shape[2]
            self.keys[write.rows, :length] = key_states.transpose(1, 2)[write.source]
            self.values[write.rows, :length] = value_states.transpose(1, 2)[write.source]
            return key_states, value_states  # a prompt attends only to its own tokens
        assert isinstance(write, DecodeWrite)
        view = slice(write.num_rows), slice(write.width)
        self.keys.flatten(0, 1).index_copy_(0, write.flat, key_states[:, :, 0])
        self.values.flatten(0, 1).index_copy_(0, write.flat, value_states[:, :, 0])
        return self.keys[view].transpose(1, 2), self.values[view].transpose(1, 2)

    def resize(self, capacity: tuple[int, int], used: tuple[int, int]) -> None:
        self.keys = resize_tensor(self.keys, capacity, used)
        self.values = resize_tensor(self.values, capacity, used)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0  # asked in prefill only: decode brings its own mask

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.shared.num_columns

    get_max_cache_shape = get_max_length  # its name in earlier transformers 5


class SlotCache(Cache):
    """All layers, and the write plan that the next forward pass follows."""

    def __init__(self, num_layers: int, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.num_rows = 0
        self.num_columns = 0
        self.write: PrefillWrite | DecodeWrite | None = None
        self.slots = [SlotLayer(self) for _ in range(num_layers)]
        super().__init__(layers=list(self.slots))

    def follow(self, write: PrefillWrite | DecodeWrite) -> None:
        """Set the plan of the next forward pass."""
        self.write = write

    def resize(self, capacity: tuple[int, int], used: tuple[int, int]) -> None:
        """Change (rows, columns); the ``used`` (rows, columns) keep their content."""
        self.num_rows, self.num_columns = capacity
        for slot in self.slots:
            if slot.is_initialized:
                slot.resize(capacity, used)

    def move_rows(self, source: Tensor, target: Tensor, width: int) -> None:
        """Copy rows ``source`` (k,) over rows ``target`` (k,), first ``width`` columns."""
        if not len(target):
            return
        for slot in self.slots:
            slot.keys[target, :width] = slot.keys[source, :width]
            slot.values[target, :width] = slot.values[source, :width]


def plan_capacity(
    have: tuple[int, int], need: tuple[int, int], budget_tokens: int
) -> tuple[int, int]:
    """(rows, columns) to allocate. Grows with slack while the budget allows it.

    Past the budget it falls back to what is needed, which may give rows back for columns
    or vice versa: many short sequences, then a few long sequences.

    >>> plan_capacity((0, 0), (8, 50), 10_000)
    (8, 64)
    >>> plan_capacity((8, 64), (9, 50), 10_000)
    (16, 64)
    >>> plan_capacity((100, 64), (2, 4000), 10_000)
    (2, 4032)
    """
    if need[0] <= have[0] and need[1] <= have[1]:
        return have
    needed_columns = -(-need[1] // COLUMN_STEP) * COLUMN_STEP
    rows = have[0] if need[0] <= have[0] else max(need[0], 2 * have[0])
    columns = max(have[1], needed_columns)
    if rows * columns <= budget_tokens:
        return rows, columns
    return need[0], needed_columns


def resize_tensor(old: Tensor, shape: tuple[int, ...], used: tuple[int, ...]) -> Tensor:
    """A zeroed tensor with these leading sizes; the ``used`` corner of ``old`` is kept."""
    new = old.new_zeros(*shape, *old.shape[len(shape) :])
    corner = tuple(slice(size) for size in used)
    new[corner] = old[corner]
    return new

"""The waiting queue, and the running batch as columns of tensors: row b = KV row b.

Memory is a rectangle of rows x columns, as wide as the longest reservation (prompt +
max_tokens), so a sequence that was admitted can always finish: nothing is preempted.
Order is first come, first served. Letting short requests overtake a long request that does
not fit yet would be faster on average, but could starve the long request.

The decode loop reads only these tensors per token, so a step is a handful of tensor
operations for any number of sequences. Python objects are touched only when a sequence
joins, ends or is watched (streaming, stop strings, top logprobs).

R rows (capacity), B active rows, C columns (positions).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from atroposlib.inference.engine.kv_cache import resize_tensor
from atroposlib.inference.engine.request import GenerationRequest, SequenceState
from atroposlib.inference.engine.sampling import RowParams


class Scheduler:
    """A queue of waiting sequences in front of a bounded rectangle of KV memory."""

    def __init__(self, max_batch: int, kv_budget_tokens: int) -> None:
        self.max_batch = max_batch
        self.kv_budget_tokens = kv_budget_tokens
        self.waiting: deque[SequenceState] = deque()

    def add(self, sequences: Iterable[SequenceState]) -> None:
        self.waiting.extend(sequences)

    def admit(self, running: list[SequenceState]) -> list[SequenceState]:
        """Dequeue, in order, the sequences that fit in memory with the ``running`` sequences."""
        admitted: list[SequenceState] = []
        rows = len(running)
        width = max((s.reserved_len for s in running), default=0)
        while self.waiting and rows < self.max_batch:
            wider = max(width, self.waiting[0].reserved_len)
            if (rows + 1) * wider > self.kv_budget_tokens:
                break
            admitted.append(self.waiting.popleft())
            rows, width = rows + 1, wider
        return admitted

    def remove(self, request: GenerationRequest) -> None:
        """Remove the sequences of a request whose client has disconnected."""
        self.waiting = deque(s for s in self.waiting if s.request is not request)

    def drain(self) -> list[SequenceState]:
        """Empty the queue and return its sequences."""
        taken = list(self.waiting)
        self.waiting.clear()
        return taken


def prefill_groups(
    lengths: list[int], max_tokens: int, max_waste: float = 1.25
) -> list[list[int]]:
    """Split prompts (by length) into batches that pad little and fit a token bound.

    A batch closes when padding would make it ``max_waste`` times its real tokens (plus a
    constant, for tiny prompts), or when it would pass ``max_tokens``; a single prompt
    always goes.

    >>> prefill_groups([7, 100, 8], max_tokens=1000)
    [[0, 2], [1]]
    """
    groups: list[list[int]] = []
    real = 0
    for index in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        length = lengths[index]
        padded = (len(groups[-1]) + 1) * length if groups else 0
        if groups and padded <= max_tokens and padded <= max_waste * (real + length) + 64:
            groups[-1].append(index)
            real += length
        else:
            groups.append([index])
            real = length
    return groups


# A value per row. Column "length" grows; the remaining columns are constant.
COLUMNS: dict[str, tuple[torch.dtype, Callable[[SequenceState], float]]] = {
    "length": (torch.int64, lambda s: s.prompt_len),
    "prompt_len": (torch.int64, lambda s: s.prompt_len),
    "max_len": (torch.int64, lambda s: s.reserved_len),
    # no end of sequence before this length
    "min_len": (torch.int64, lambda s: s.prompt_len + s.request.params.min_tokens),
    "ignore_eos": (torch.bool, lambda s: s.request.params.ignore_eos),
    "temperature": (torch.float32, lambda s: s.request.params.temperature),
    "top_p": (torch.float32, lambda s: s.request.params.top_p),
    "top_k": (torch.int64, lambda s: s.request.params.top_k),
    "seed": (torch.int64, lambda s: s.seed),
    "rope_shift": (torch.int64, lambda s: s.rope_shift),
}


class RunningBatch:
    """Rows 0 .. B-1 are running. ``lengths`` counts known tokens, prompt included."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.sequences: list[SequenceState] = []
        self._summarise()
        self._columns = {
            name: torch.zeros(0, dtype=dtype, device=device)
            for name, (dtype, _) in COLUMNS.items()
        }
        self.tokens = torch.zeros(0, 0, dtype=torch.int64, device=device)  # (R, C)
        self.logprobs = torch.zeros(0, 0, dtype=torch.float32, device=device)  # (R, C)

    def __len__(self) -> int:
        return len(self.sequences)

    def column(self, name: str, rows: slice | Tensor) -> Tensor:
        return self._columns[name][rows]

    def widest(self) -> int:
        """Known tokens of the longest active row."""
        if not self.sequences:
            return 0
        return int(self._columns["length"][: len(self.sequences)].max())

    def resize(self, capacity: tuple[int, int], used: tuple[int, int]) -> None:
        """Change (rows, columns); the ``used`` (rows, columns) keep their content."""
        for name, old in self._columns.items():
            self._columns[name] = resize_tensor(old, capacity[:1], used[:1])
        self.tokens = resize_tensor(self.tokens, capacity, used)
        self.logprobs = resize_tensor(self.logprobs, capacity, used)

    def join(self, sequences: list[SequenceState]) -> slice:
        """Give each sequence the next row; memory must have been reserved."""
        first = len(self.sequences)
        self.sequences.extend(sequences)
        rows = slice(first, len(self.sequences))
        for name, (dtype, value) in COLUMNS.items():
            column = torch.tensor(
                [value(s) for s in sequences], dtype=dtype, device=self.device
            )
            self._columns[name][rows] = column
        self._summarise()
        return rows

    def _summarise(self) -> None:
        """Flags over all rows, computed when rows change and not per token."""
        params = [s.request.params for s in self.sequences]
        self.watched = [row for row, s in enumerate(self.sequences) if s.is_watched]
        self.any_greedy = any(p.temperature <= 0 for p in params)
        self.any_truncated = any(p.top_p < 1.0 or p.top_k > 0 for p in params)
        self.any_min_tokens = any(p.min_tokens for p in params)
        self.any_pictures = any(s.request.pictures for s in self.sequences)
        self.any_experts = any(p.routed_experts for p in params)

    def row_params(self, rows: slice) -> RowParams:
        return RowParams(
            temperature=self.column("temperature", rows),
            top_p=self.column("top_p", rows),
            top_k=self.column("top_k", rows),
            seed=self.column("seed", rows),
            any_greedy=self.any_greedy,
            any_truncated=self.any_truncated,
        )

    def has_pictures(self, rows: slice) -> Tensor:
        """(k,) bool of these rows."""
        flags = [s.request.pictures is not None for s in self.sequences[rows]]
        return torch.tensor(flags, device=self.device)

    def append(self, rows: slice, tokens: Tensor, logprobs: Tensor) -> None:
        """Append a token to each of these rows. tokens, logprobs: (k,)."""
        index = torch.arange(rows.start, rows.stop, device=self.device)
        at = self.column("length", rows)
        self.tokens[index, at] = tokens
        self.logprobs[index, at] = logprobs
        self._columns["length"][rows] += 1

    def leave(self, gone: list[int]) -> tuple[Tensor, Tensor]:
        """Drop rows and close the gaps with the last rows.

        Returns:
            (source, target): rows to copy in every row-indexed storage, (k,) each.
        """
        dropped = set(gone)
        remaining = len(self.sequences) - len(dropped)
        holes = [row for row in sorted(dropped) if row < remaining]
        movers = [r for r in range(remaining, len(self.sequences)) if r not in dropped]
        for hole, mover in zip(holes, movers):
            self.sequences[hole] = self.sequences[mover]
        del self.sequences[remaining:]
        source = torch.tensor(movers, dtype=torch.int64, device=self.device)
        target = torch.tensor(holes, dtype=torch.int64, device=self.device)
        if movers:
            for column in self._columns.values():
                column[target] = column[source]
            self.tokens[target] = self.tokens[source]
            self.logprobs[target] = self.logprobs[source]
        self._summarise()
        return source, target

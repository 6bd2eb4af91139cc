"""Admission of waiting sequences to the batch. Pure: no tensors, no clock, no thread.

Memory is a rectangle of rows x columns, as wide as the longest reservation (prompt +
max_tokens), so a sequence that was admitted can always finish: nothing is preempted.
Order is first come, first served. Letting short requests overtake a long one that does
not fit yet would be faster on average, but could starve the long one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from atroposlib.inference.engine.request import GenerationRequest, SequenceState


class Scheduler:
    """A queue of waiting sequences in front of a bounded rectangle of KV memory."""

    def __init__(self, max_batch: int, kv_budget_tokens: int) -> None:
        self.max_batch = max_batch
        self.kv_budget_tokens = kv_budget_tokens
        self.waiting: deque[SequenceState] = deque()

    def add(self, sequences: Iterable[SequenceState]) -> None:
        self.waiting.extend(sequences)

    def admit(self, running: list[SequenceState]) -> list[SequenceState]:
        """Dequeue, in order, the sequences that fit in memory with the running ones."""
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
    constant, for tiny prompts), or when it would pass ``max_tokens``; one prompt alone
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

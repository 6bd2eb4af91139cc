"""Rollouts that wait for their item: left by earlier lives, or begun by the backlog."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from atroposlib.envs.journal.journal_records import (
    DataPlace,
    GroupObserved,
    GroupsFinished,
    Record,
    RolloutBegun,
    SampleFinished,
    SamplerSaved,
    TaskDrawn,
    decode_item,
)
from atroposlib.envs.journal.journal_state import JournalState
from atroposlib.envs.journal.journalled_rollout import LeftWork

Key = int | str  # place in the data, or digest of the task


@dataclass(frozen=True)
class LeftRollout:
    """Samples that an earlier life left of an item; an item of the backlog has none."""

    name: str
    task: str  # digest
    samples: Sequence[SampleFinished]
    begun_at: int = 0  # the number in JournalledRollout


@dataclass
class LeftRollouts:
    """Waiting rollouts by the key of their item, oldest first."""

    earlier: frozenset[str] = frozenset()  # names of those that earlier lives left
    _waiting: dict[Key, deque[LeftRollout]] = field(default_factory=dict)
    _requeued: Counter[str] = field(default_factory=Counter)

    def take_over(self, state: JournalState[Record]) -> tuple[LeftWork, list[str]]:
        """Let the rollouts of ``state`` wait.

        Returns the work that is left, and the names of rollouts whose item is not known.
        """
        work = LeftWork(
            names=frozenset(state.open),
            sampler=next((r for r in state.sampler if isinstance(r, SamplerSaved)), None),
            sampler_events=[
                r for r in state.sampler if isinstance(r, TaskDrawn | GroupObserved)
            ],
        )
        without_item = []
        posted: set[int | None] = set()
        self.earlier = work.names
        for name, entry in state.open.items():
            begun = next((r for r in entry.begun if isinstance(r, RolloutBegun)), None)
            groups = [r.groups for r in entry.groups if isinstance(r, GroupsFinished)]
            if groups:
                work.groups.append((name, groups[-1]))
                posted.add(begun.place if begun else None)
            elif begun is None:
                without_item.append(name)
            else:
                samples = [r for r in entry.samples if isinstance(r, SampleFinished)]
                work.samples += len(samples)
                key = begun.task if begun.place is None else begun.place
                self.add(key, LeftRollout(name, begun.task, samples))
                if begun.place is not None and begun.item is not None:
                    work.numbers[begun.place] = decode_item(begun.item)
                elif begun.item is not None:
                    self._requeued[begun.task] += 1
                    work.items.append((name, decode_item(begun.item)))
        if state.places is not None:
            place = state.places.record()
            remaining = [number for number in place.open_places if number not in posted]
            work.place = DataPlace(place.next_place, remaining)
        return work, without_item

    def add(self, key: Key, rollout: LeftRollout) -> None:
        """Let ``rollout`` wait for the item of ``key``."""
        self._waiting.setdefault(key, deque()).append(rollout)

    @property
    def has_requeued(self) -> bool:
        """Whether an item may be a repetition; without any its digest need not be known."""
        return bool(self._requeued)

    @property
    def has_waiting(self) -> bool:
        """Whether an item may continue a rollout."""
        return bool(self._waiting)

    def is_repetition(self, task: str) -> bool:
        """Whether an item that the environment hands out was requeued; true once for each."""
        if self._requeued[task] <= 0:
            return False
        self._requeued[task] -= 1
        self._requeued += Counter()  # drops the counts of 0
        return True

    def changed(self, key: Key, task: str) -> list[LeftRollout]:
        """Remove and return the rollouts before the first of ``task``: their task has changed."""
        waiting = self._waiting.get(key, deque())
        removed = []
        while waiting and waiting[0].task != task:
            removed.append(waiting.popleft())
        return removed

    def name(self, key: Key) -> str | None:
        """Name of the oldest rollout of ``key``."""
        waiting = self._waiting.get(key)
        return waiting[0].name if waiting else None

    def take(self, key: Key, name: str) -> LeftRollout | None:
        """Remove and return the oldest rollout of ``key``, if ``name`` is its name."""
        if self.name(key) != name:
            return None
        rollout = self._waiting[key].popleft()
        if not self._waiting[key]:
            del self._waiting[key]
        return rollout

    def clear(self) -> None:
        """Forget all."""
        self._waiting.clear()
        self._requeued.clear()


def backlog_name(parent: str, number: int) -> str:
    """Name of the rollout of an item for the backlog, the same in each life of its parent."""
    return sha256(f"{parent}/{number}".encode()).hexdigest()[:32]

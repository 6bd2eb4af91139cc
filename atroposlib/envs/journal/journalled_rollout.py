"""Rollout under way as its journal sees it, and the work that earlier lives left."""

from __future__ import annotations

from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from atroposlib.envs.journal.journal_records import (
    DataPlace,
    SampleFinished,
    SamplerEvent,
    SamplerSaved,
)


@dataclass
class JournalledRollout:
    """A rollout under way, with the samples that an earlier life left for it."""

    name: str
    left: deque[SampleFinished] = field(default_factory=deque)
    incarnation: int | None = (
        None  # the life of the trainer that the oldest sample began under
    )
    finished: list[SampleFinished] = field(default_factory=list)  # samples of this attempt
    samples: int = 0  # kept in the journal
    has_groups: bool = False  # the journal holds its groups
    begun_at: int = 0  # number of the record of its beginning
    _keys: int = 0

    @property
    def is_kept(self) -> bool:
        """Whether samples or groups of it are left to the next life."""
        return bool(self.samples or self.has_groups)

    def next_key(self) -> str:
        """A key of a group, the same in each life."""
        self._keys += 1
        return f"{self.name}-{self._keys - 1}"

    def repeat(self) -> None:
        """Forget the samples of an attempt that failed."""
        self.left.clear()
        self.finished.clear()
        self.samples = 0

    def go_on(self) -> None:
        """Offer the samples of an attempt that a lost server ended to the next attempt."""
        self.left.extendleft(reversed(self.finished))
        self.finished.clear()

    def note_incarnation(self, incarnation: int | None) -> None:
        """Follow the life of the trainer under which a sample began."""
        known = [number for number in (self.incarnation, incarnation) if number is not None]
        self.incarnation = min(known, default=None)


_ROLLOUT: ContextVar[JournalledRollout | None] = ContextVar("journalled_rollout", default=None)


def rollout_here() -> JournalledRollout | None:
    """The rollout of this task; None without a journal."""
    return _ROLLOUT.get()


def enter_rollout(rollout: JournalledRollout | None) -> None:
    """Make ``rollout`` that of the current task and its children."""
    _ROLLOUT.set(rollout)


@dataclass
class LeftWork:
    """Work that earlier lives of an environment left."""

    place: DataPlace | None = None
    items: list[tuple[str, Any]] = field(default_factory=list)  # name of the rollout, item
    groups: list[tuple[str, list[bytes]]] = field(default_factory=list)
    samples: int = 0
    names: frozenset[str] = frozenset()  # every rollout that is left
    sampler: SamplerSaved | None = None  # newest snapshot of the sampler of tasks
    sampler_events: list[SamplerEvent] = field(default_factory=list)  # since the snapshot
    # Numbers of sampled tasks, by open place.
    numbers: dict[int, int] = field(default_factory=dict)

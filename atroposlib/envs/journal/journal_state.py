"""State of a journal: what its records leave to do. Pure.

    records --apply--> JournalState: run, place in the data, open rollouts with samples, groups

The writer keeps the same state with places in the file instead of the bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from atroposlib.envs.journal.journal_records import (
    DataPlace,
    GroupObserved,
    GroupsFinished,
    Record,
    RolloutBegun,
    RolloutEnded,
    RolloutRepeated,
    RunStarted,
    SampleFinished,
    SamplerSaved,
    TaskDrawn,
)

Kept = TypeVar("Kept")  # a record, or its place in the file


@dataclass
class OpenEntry(Generic[Kept]):
    """Records of a rollout that has not ended."""

    begun: list[Kept] = field(default_factory=list)
    samples: list[Kept] = field(default_factory=list)
    groups: list[Kept] = field(default_factory=list)

    @property
    def records(self) -> list[Kept]:
        """All, in an order in which they may be applied again."""
        return [*self.begun, *self.samples, *self.groups]


@dataclass
class Places:
    """Position in the data, as a data set's cursor counts."""

    next_place: int = 0
    is_open: set[int] = field(default_factory=set)
    of_rollout: dict[str, int] = field(default_factory=dict)

    def begin(self, rollout: str, place: int) -> None:
        """Note an item that is handed out."""
        self.next_place = max(self.next_place, place + 1)
        self.is_open.add(place)
        self.of_rollout[rollout] = place

    def end(self, rollout: str) -> None:
        """Note the end of an item; an unknown one has no place."""
        place = self.of_rollout.pop(rollout, None)
        if place is not None:
            self.is_open.discard(place)

    def record(self) -> DataPlace:
        """The position, as the journal keeps it."""
        return DataPlace(self.next_place, sorted(self.is_open))


@dataclass
class JournalState(Generic[Kept]):
    """Work that the records of a journal leave."""

    run_id: str | None = None
    places: Places | None = None  # None: the environment does not count its items
    open: dict[str, OpenEntry[Kept]] = field(default_factory=dict)  # oldest first
    sampler: list[Kept] = field(default_factory=list)  # last snapshot, and events since

    def apply(self, record: Record, kept: Kept) -> None:
        """Follow ``record``; ``kept`` stands for it in the open rollouts."""
        if isinstance(record, RunStarted):
            if self.run_id != record.run_id:
                self.open.clear()
            self.run_id = record.run_id
        elif isinstance(record, DataPlace):
            of_rollout = self.places.of_rollout if self.places is not None else {}
            self.places = Places(record.next_place, set(record.open_places), of_rollout)
        elif isinstance(record, SamplerSaved):
            self.sampler = [kept]
        elif isinstance(record, TaskDrawn | GroupObserved):
            self.sampler.append(kept)
        elif isinstance(record, RolloutEnded):
            self.open.pop(record.rollout, None)
            if self.places is not None:
                self.places.end(record.rollout)
        else:
            self._apply_to_entry(record, kept)

    def _apply_to_entry(
        self,
        record: RolloutBegun | SampleFinished | GroupsFinished | RolloutRepeated,
        kept: Kept,
    ) -> None:
        if isinstance(record, RolloutRepeated):
            self._repeat(record.rollout)
            return
        entry = self.open.setdefault(record.rollout, OpenEntry())
        if isinstance(record, RolloutBegun):
            entry.begun = [kept]
            if record.place is not None:
                self.places = self.places or Places()
                self.places.begin(record.rollout, record.place)
        elif isinstance(record, SampleFinished):
            entry.samples.append(kept)
        else:
            entry.groups = [kept]

    def _repeat(self, rollout: str) -> None:
        entry = self.open.get(rollout)
        if entry is None:
            return
        entry.samples, entry.groups = [], []
        if not entry.begun:
            del self.open[rollout]

    def head(self) -> Iterator[Record]:
        """Run and position: the first records of a file with this state."""
        if self.run_id is not None:
            yield RunStarted(self.run_id)
        if self.places is not None:
            yield self.places.record()

    def kept_records(self) -> Iterator[Kept]:
        """Everything that is kept of the sampler and of open rollouts, oldest rollout first."""
        yield from self.sampler
        for entry in self.open.values():
            yield from entry.records


def state_after(records: Iterable[Record]) -> JournalState[Record]:
    """The state after ``records``, with the records themselves."""
    state: JournalState[Record] = JournalState()
    for record in records:
        state.apply(record, record)
    return state


def merge_journals(
    states: Iterable[JournalState[Record]], run_id: str
) -> JournalState[Record]:
    """The state of journals of one environment in ``run_id``; journals of other runs are left out.

    A process that was killed while it took over a journal leaves two with the same rollouts, of
    which the first is taken: give the newest first.
    """
    whole: JournalState[Record] = JournalState(run_id)
    for state in states:
        if state.run_id != run_id:
            continue
        for name, entry in state.open.items():
            whole.open.setdefault(name, entry)
        if whole.places is None or (
            state.places is not None and state.places.next_place > whole.places.next_place
        ):
            whole.places = state.places
        whole.sampler = whole.sampler or state.sampler
    return whole

"""Journal of an environment: what it finishes is kept, and what an earlier life left is used.

    begin(item) --> draw: a kept sample of an earlier life, or a new sample, kept
                    '--> groups accepted: under keys of the rollout, posted --> end

Keys are the rollout's name and a number, so a life that repeats the post of an earlier life uses
the same key and the rollout API stores it once. So a rollout must be on the disk before its first
post. The semantics and the crash points are in ``docs/decisions/0031-journal-of-samples.md``.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from atroposlib.envs.journal.journal_file import JournalFile
from atroposlib.envs.journal.journal_owner import SUFFIX, take_free_journals
from atroposlib.envs.journal.journal_records import (
    DataPlace,
    GroupsFinished,
    Record,
    RolloutBegun,
    RolloutEnded,
    RolloutRepeated,
    RunStarted,
    SampleFinished,
    SamplerEvent,
    SamplerSaved,
    encode_item,
)
from atroposlib.envs.journal.journal_state import JournalState, merge_journals
from atroposlib.envs.journal.journalled_rollout import (
    JournalledRollout,
    LeftWork,
    enter_rollout,
    rollout_here,
)
from atroposlib.envs.journal.left_rollouts import Key, LeftRollout, LeftRollouts, backlog_name
from atroposlib.envs.journal.stored_samples import SampleForm, oldest_sampled_version
from atroposlib.envs.rollout.groups import task_digest
from atroposlib.envs.rollout.token_account import TokenAccount, open_tally
from atroposlib.generation.sessions.recording import recorded_nodes
from atroposlib.utils.io import file_name_of
from atroposlib.wire.status import drop_state

logger = logging.getLogger(__name__)
FOLDER = "env_journal"
SYNC_TIMEOUT_S = 30.0  # longest wait of a post for the disk
Value = TypeVar("Value")


@dataclass
class SampleJournal:
    """The journal of a process; without an open file every method does nothing.

    Args:
        label: name of the environment; a restarted process takes the journals of its name.
        is_stale: whether tokens of a policy version are too old for the run.
        place_of: gives the place of an item in the data.
    """

    label: str
    is_stale: Callable[[int], bool] = lambda version: False
    # Place of an item in the data; None: the environment does not count its items.
    place_of: Callable[[Any], int | None] = lambda item: None
    account: TokenAccount = field(default_factory=TokenAccount)
    # Number of the task that a sampler chose for an item with a place.
    number_of: Callable[[Any], int | None] = lambda item: None
    counts: Counter[str] = field(default_factory=Counter)
    file: JournalFile | None = None
    _open: dict[str, JournalledRollout] = field(default_factory=dict)
    _left: LeftRollouts = field(default_factory=LeftRollouts)
    _is_warned: bool = False

    # --- lives ------------------------------------------------------------------------

    def start(self, folder: Path, run_id: str, limit_bytes: int) -> LeftWork:
        """Open a journal in ``folder``, take over journals that earlier lives left there.

        Raises OSError: the file system refuses.
        """
        folder.mkdir(parents=True, exist_ok=True)
        name = file_name_of(self.label)
        free = take_free_journals(folder, name)
        try:
            other = [state for state in free.states if state.run_id != run_id]
            for entry in (entry for state in other for entry in state.open.values()):
                self.counts["dropped_run_ended"] += len(entry.samples)
            state = merge_journals(free.states, run_id)
            file = JournalFile(folder / f"{name}-{uuid.uuid4().hex[:12]}{SUFFIX}", limit_bytes)
            file.open([*state.head(), *state.kept_records()])
            free.delete()
        finally:
            free.release()
        self.file = file
        return self._take_over(state)

    def _take_over(self, state: JournalState[Record]) -> LeftWork:
        left, without_item = self._left.take_over(state)
        for name in without_item:
            self.end_left(name)
        self.counts["left_samples"] += left.samples
        self.counts["left_groups"] += sum(len(groups) for _, groups in left.groups)
        return left

    def follow_run(self, run_id: str) -> None:
        """Go on in another run: nothing that was kept has a meaning in it."""
        if self.file is not None:
            self._open.clear()
            self._left.clear()
            self.file.write(RunStarted(run_id))

    def note_place(self, next_place: int, open_places: Sequence[int]) -> None:
        """Record the position in the data from which this process goes on."""
        if self.file is not None:
            self.file.write(DataPlace(next_place, list(open_places)))

    def note_sampler(self, record: SamplerSaved | SamplerEvent) -> None:
        """Record a choice or an observation of the sampler of tasks, or a snapshot of it."""
        if self.file is not None:
            self.file.write(record)

    def close(self, *, delete: bool) -> None:
        """Close the file; ``delete``: nothing in it will be needed."""
        if self.file is not None:
            self.file.close(delete=delete)
            self.file = None

    def figures(self) -> dict[str, float | str]:
        """Counts for heartbeats."""
        if self.file is not None and self.file.dropped_samples:
            self.counts["dropped_journal_full"] = self.file.dropped_samples
        return {f"journal_{name}": float(count) for name, count in self.counts.items()}

    # --- items ------------------------------------------------------------------------

    def is_repetition(self, item: Any) -> bool:
        """Whether an item that the environment hands out was requeued from the journal."""
        return self._left.has_requeued and self._left.is_repetition(task_digest(item))

    def name_of(self, item: Any) -> str | None:
        """The rollout of an earlier life or of the backlog that ``item`` continues, or None.

        Samples of a task that has changed since are dropped.
        """
        if not self._left.has_waiting:
            return None
        key, task = self._key_and_task(item)
        for changed in self._left.changed(key, task):
            self._drop(changed.samples, "task_changed")
            self.end_left(changed.name)
        return self._left.name(key)

    def _key_and_task(self, item: Any) -> tuple[Key, str]:
        place, task = self.place_of(item), task_digest(item)
        return task if place is None else place, task

    def begin(self, name: str, item: Any) -> None:
        """Record that ``item`` is under way; what an earlier life left of it is offered."""
        if self.file is None or name in self._open:
            return
        rollout = self._open[name] = JournalledRollout(name)
        key, task = self._key_and_task(item)
        waiting = self._left.take(key, name)
        if waiting is not None:
            rollout.left.extend(waiting.samples)
            rollout.samples, rollout.begun_at = len(rollout.left), waiting.begun_at
        else:
            place = self.place_of(item)
            stored = encode_item(item) if place is None else None
            number = None if place is None else self.number_of(item)
            if number is not None:  # a sampler chose the task of the place
                stored = encode_item(number)
            record = RolloutBegun(name, task, place, stored)
            # An environment that saves its own count of items does not give this one again.
            rollout.begun_at = self.file.write(
                record, at_once=place is None and stored is not None
            )

    def keep_backlog(self, parent: str, items: Sequence[Any]) -> list[Any]:
        """Record and return items that the rollout ``parent`` returned for the backlog.

        A next life repeats a rollout whose groups were not posted yet. What it returned for the
        backlog before is under way by then, and is left out.
        """
        if self.file is None:
            return list(items)
        remaining = []
        for number, item in enumerate(items):
            name = backlog_name(parent, number)
            if name in self._left.earlier:
                continue
            remaining.append(item)
            stored = encode_item(item) if self.place_of(item) is None else None
            if stored is not None:
                task = task_digest(item)
                begun = RolloutBegun(name, task, None, stored)
                begun_at = self.file.write(begun, at_once=True)
                self._left.add(task, LeftRollout(name, task, [], begun_at))
        return remaining

    def enter(self, name: str, incarnation: int | None) -> None:
        """Make the rollout ``name`` that of the current task and its children."""
        rollout = self._open.get(name)
        if rollout is not None:
            rollout.note_incarnation(incarnation)
        enter_rollout(rollout)

    def repeat(self, name: str) -> None:
        """Record that the item is rolled out again from the beginning."""
        rollout = self._open.get(name)
        if rollout is not None and self.file is not None:
            self.counts["dropped_attempt_failed"] += rollout.samples
            rollout.repeat()
            self.file.write(RolloutRepeated(name))

    def go_on(self, name: str) -> None:
        """Let the next attempt at the item use the finished samples of this attempt."""
        rollout = self._open.get(name)
        if rollout is not None:
            rollout.go_on()

    def end(self, name: str) -> None:
        """Record that nothing of the rollout is left to do."""
        if self._open.pop(name, None) is not None:
            self.end_left(name)

    def holds(self, name: str) -> bool:
        """Whether samples or groups of the rollout are left to the next life."""
        rollout = self._open.get(name)
        return rollout is not None and rollout.is_kept

    def _drop(self, samples: Sequence[SampleFinished], reason: str) -> None:
        self.counts[f"dropped_{reason}"] += len(samples)
        for sample in samples:
            self.account.take_over(*sample.account_entry)
            self.account.settle(drop_state(f"journal_{reason}"), *sample.account_entry)

    def end_left(self, name: str) -> None:
        """Record that nothing of a rollout is left to do that may not have begun in this life."""
        if self.file is not None:
            self.file.write(RolloutEnded(name))

    # --- samples and groups -------------------------------------------------------------

    async def kept_or_drawn(
        self, draw: Callable[[], Awaitable[Value]], form: SampleForm[Value]
    ) -> Value:
        """A sample that an earlier life or attempt left for this rollout, else a new sample, kept."""
        rollout = rollout_here()
        if rollout is None or self.file is None:
            return await draw()
        while rollout.left:
            sample = rollout.left.popleft()
            if sample.oldest_version is not None and self.is_stale(sample.oldest_version):
                self._drop([sample], "stale")
                continue
            rollout.note_incarnation(sample.incarnation)
            rollout.finished.append(sample)
            self.counts["used_samples"] += 1
            self.account.take_over(*sample.account_entry)
            if (tally := open_tally()) is not None:
                tally.add(sample.tokens, sample.account_entry[0])
            return form.unpack_sample(sample.payload)
        incarnation = rollout.incarnation
        with recorded_nodes() as nodes:
            value = await draw()
        try:
            payload = form.pack_sample(value, nodes)
        except (TypeError, ValueError, OverflowError) as error:
            self._warn(error)
            return value
        if payload is not None and self.file is not None:
            version = oldest_sampled_version(form.versions(value))
            tally = open_tally()
            tokens = tally.tokens if tally is not None else 0
            sample = SampleFinished(rollout.name, payload, version, tokens, incarnation)
            self.file.write(sample)
            rollout.finished.append(sample)
            rollout.samples += 1
        return value

    async def before_post(self, groups: Callable[[], list[bytes]]) -> None:
        """Return when the rollout of this task may be posted under its keys.

        ``groups`` gives the groups in the form of the wire; they are kept unless its samples are.
        """
        rollout = rollout_here()
        if rollout is None or self.file is None:
            return
        if not rollout.samples:
            self.file.write(GroupsFinished(rollout.name, groups()))
            rollout.has_groups = True
        if rollout.begun_at <= self.file.synchronised:
            return
        event = self.file.synchronise()
        if not await asyncio.to_thread(event.wait, SYNC_TIMEOUT_S):
            logger.error("the disk of the journal %s takes no writes", self.file.path)

    def _warn(self, error: Exception) -> None:
        if not self._is_warned:
            self._is_warned = True
            logger.warning("%s: samples are not kept in the journal: %s", self.label, error)

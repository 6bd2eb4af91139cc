"""Curriculum of a running environment: draws, observations, counts, and what a restart needs.

    draw(place) -----> TaskDrawn ------.
    observe(groups) -> GroupObserved --+--> journal, with a snapshot of the sampler now and then
                                       '--> counts of the metrics, lines of the history

A restart restores the newest snapshot and repeats the events behind it, in their order. The state
is then that of the dead process after the last event that it had written.
"""

from __future__ import annotations

import base64
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

from atroposlib.envs.curriculum.group_counts import GroupCounts
from atroposlib.envs.curriculum.history import TaskHistory
from atroposlib.envs.curriculum.interface import GroupGate, ObservedGroup, Task, TaskSampler
from atroposlib.envs.curriculum.observation import event_of, group_of_event, observed_group
from atroposlib.envs.curriculum.registry import make_gate, make_sampler
from atroposlib.envs.curriculum.score_range import score_range_of
from atroposlib.envs.curriculum.task_names import NamedTasks, change_of
from atroposlib.envs.journal.journal_records import (
    SamplerEvent,
    SamplerSaved,
    TaskDrawn,
    decode_item,
    encode_item,
)
from atroposlib.envs.rollout.blocking import BlockingCalls
from atroposlib.envs.rollout.groups import is_placed
from atroposlib.envs.settings.config import BaseEnvConfig
from atroposlib.errors import AtroposError, ConfigError, boundary

logger = logging.getLogger(__name__)
EVENTS_APART = 512  # events between two snapshots in the journal
CHECKED_AT = 4  # events after which the state is known to be storable, or not
REMEMBERED = 1024  # observed rollouts that a restart may bring again
UNCOUNTED = -1  # place of a draw of a class


class Curriculum:
    """Sampler and gate of an environment; without either it observes nothing.

    Args:
        label: name of the environment, for errors.
        record: appends a record to the journal.
    """

    def __init__(
        self,
        config: BaseEnvConfig,
        label: str,
        record: Callable[[SamplerSaved | SamplerEvent], None] = lambda record: None,
        score_range: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        self.settings, self.label, self._record = config.curriculum, label, record
        self._seed = config.seed
        self._range = score_range_of(self.settings, score_range, label)
        gate = self.settings.gate
        self.gate: GroupGate | None = None if gate is None else make_gate(gate, env=label)
        self.sampler: TaskSampler | None = None
        self.named = NamedTasks(())  # the sampler's tasks
        self.history = TaskHistory()
        self.open: dict[int, int] = {}  # number of the task of each place that is not observed
        self._observed: deque[str] = deque(maxlen=REMEMBERED)  # names of rollouts
        self._events = self._unsaved = 0
        self.counts = GroupCounts()
        self.calls = BlockingCalls(label)

    @property
    def observes(self) -> bool:
        """Whether groups are observed at all."""
        return self.settings.observes

    # --- tasks --------------------------------------------------------------------------

    def choose_from(self, tasks: Sequence[Task]) -> None:
        """Make the sampler of the settings over ``tasks``. Raises ConfigError."""
        self.sampler = make_sampler(
            self.settings.sampler, tasks, seed=self._seed, env=self.label
        )
        self.named = NamedTasks(tasks)

    def task_at(self, place: int) -> Task | None:
        """The task of a place: that handed out there and not observed yet, else a new draw."""
        sampler = self._require_sampler()
        number = self.open.get(place)
        if number is not None and number < len(sampler.tasks):
            return sampler.tasks[number]
        task = self._draw(sampler, place)
        if task is not None and task.number is not None:
            self.open[place] = task.number
        return task

    def draw_uncounted(self) -> Task | None:
        """A new draw, for a class, whose journal keeps the items themselves."""
        task = self._draw(self._require_sampler(), UNCOUNTED)
        if task is not None:
            self.named.note(task)
        return task

    def _draw(self, sampler: TaskSampler, place: int) -> Task | None:
        with self._calling("sampler.next", None, type(sampler).next):
            task = sampler.draw()
        if task is not None and task.number is not None:
            self._note(TaskDrawn(place, task.number))
        return task

    @contextmanager
    def _calling(
        self, call: str, item: Any = None, code: Callable[..., Any] | None = None
    ) -> Iterator[None]:
        """A call of the user's code on the event loop: errors with its name, and its seconds."""
        with self.calls.watch(call), boundary(self.label, item, call, code):
            yield

    def _require_sampler(self) -> TaskSampler:
        if self.sampler is None:
            raise ConfigError(f"{self.label}: the tasks of the curriculum are not loaded yet")
        return self.sampler

    def _task_of(self, item: Any) -> Task:
        placed = is_placed(item)
        number = item.get("number") if placed else self.named.number_of(item)
        if self.sampler is None or number is None:
            return Task(item["task"] if placed else item)
        return self.sampler.tasks[number]

    # --- groups -------------------------------------------------------------------------

    def observation_of(self, groups: Sequence[Any], item: Any, version: int) -> ObservedGroup:
        """The observation of ``groups`` of ``item``."""
        task, (floor, best) = self._task_of(item), self._range.ends
        return observed_group(task, groups, floor=floor, best=best, version=version)

    def observe(
        self, groups: Sequence[Any], item: Any, *, version: int, step: int, rollout: str | None
    ) -> None:
        """Follow the groups of an ended rollout; without groups it failed.

        ``rollout``: its name in the journal, which is the same in every life, so that a group
        which a restart brings again is observed once.
        """
        if not self.observes:
            return
        group = self.observation_of(groups, item, version)
        if group.scores and rollout is not None:
            if rollout in self._observed:
                return
            self._observed.append(rollout)
        if group.scores and isinstance(item, Mapping):
            self.open.pop(item.get("place", -1), None)
        self.counts.add(group)
        self._range.warn_outside(group.scores, self.label)
        with self._calling("sampler.observe", item):
            if self.sampler is not None:
                self.sampler.observe(group)
        self._note(event_of(group, rollout))
        self.history.write(group, item, step, self.pool_of(group.task))

    def refusal(self, group: Any, item: Any, version: int) -> str | None:
        """Why the gate does not send a group; None: the group is sent."""
        if self.gate is None:
            return None
        observed = self.observation_of([group], item, version)
        with self._calling("gate.admit", item):
            return self.gate.refusal(observed)

    def pool_of(self, task: Task) -> str | None:
        """The pool of a task, of samplers that have pools."""
        pool = getattr(self.sampler, "pool", None)
        return None if pool is None or task.number is None else str(pool(task.number))

    def metrics(self) -> dict[str, float]:
        """Numbers under ``curriculum/``: of the sampler, since the last call, and in all."""
        if not self.observes:
            return {}
        numbers = self.counts.metrics()
        if self.sampler is not None:
            with self._calling("sampler.metrics"):
                numbers |= self.sampler.metrics()
        numbers |= self.calls.metrics()
        return {f"curriculum/{name}": value for name, value in numbers.items()}

    # --- restarts -----------------------------------------------------------------------

    def _note(self, event: SamplerEvent) -> None:
        self._events += 1
        self._unsaved += 1
        self._record(event)
        if self._unsaved >= EVENTS_APART:
            self.save_to_journal()
        elif self._events == CHECKED_AT:
            self._packed_state()  # a state that cannot be kept is an error now, and not hours later

    def save_to_journal(self) -> None:
        """Append a snapshot, behind which the journal drops earlier events."""
        if self.observes:
            self._unsaved = 0
            self._record(SamplerSaved(self._packed_state(), self._events))

    def checkpoint(self) -> dict[str, Any]:
        """The state for a checkpoint; empty if nothing is observed."""
        if not self.observes:
            return {}
        return {
            "events": self._events,
            "state": base64.b64encode(self._packed_state()).decode("ascii"),
        }

    def _packed_state(self) -> bytes:
        with boundary(self.label, None, "sampler.state"):
            own = None if self.sampler is None else self.sampler.state()
        state = {
            "sampler": self.settings.sampler.name,
            "tasks": self.named.digest(),
            "state": own,
            "open": self.open,
            "observed": [*self._observed],
            "counts": self.counts.totals,
        }
        packed = encode_item(state)
        if packed is None:
            raise ConfigError(
                f"{self.label}: state() of {type(self.sampler).__name__} holds more than numbers, texts, "
                "lists and mappings: override state and restore"
            )
        return packed

    def restore_checkpoint(self, saved: Mapping[str, Any]) -> None:
        """Continue from :meth:`checkpoint`; a state that cannot be used is left out, with a warning."""
        self._restore(lambda: (base64.b64decode(saved["state"]), int(saved["events"])))

    def go_on(
        self,
        saved: SamplerSaved | None,
        events: Sequence[SamplerEvent],
        places: Mapping[int, int],
    ) -> None:
        """Continue from the journal, unless the checkpoint is further on.

        ``places``: numbers of the tasks of places that are not ended.
        """
        if not self.observes:
            return
        usable = True
        if (saved.events if saved else 0) + len(events) >= self._events:
            if saved is not None:
                usable = self._restore(lambda: (saved.state, saved.events))
            if usable and (saved is not None or not self._events):
                with boundary(self.label, None, "sampler.repeat"):
                    others = sum(map(self._repeat, events))
                if others:
                    logger.warning(
                        "%s: %d draws differ from the last life's", self.label, others
                    )
        if usable:
            self.open |= places
        self.save_to_journal()

    def _restore(self, read: Callable[[], tuple[bytes, int]]) -> bool:
        """Continue from a packed state and its number of events; False: the sampler begins anew.

        A number in the state is the place of a task, so it has no meaning in another list of tasks.
        """
        try:
            with boundary(self.label, None, "sampler.restore"):
                packed, events = read()
                change = self._take_over(cast(dict[str, Any], decode_item(packed)))
        except AtroposError as error:
            change = str(error)
        if change is None:
            self._events = events
            return True
        logger.warning("%s: the curriculum begins anew: %s", self.label, change)
        if self.sampler is not None:  # a part may be taken over
            self.choose_from(self.sampler.tasks)
        self.open, self.counts = {}, GroupCounts()
        self._observed.clear()
        return False

    def _take_over(self, state: Mapping[str, Any]) -> str | None:
        """Take over an unpacked state, or return why it does not belong to this sampler."""
        if state["sampler"] != self.settings.sampler.name:
            return f"the sampler was {state['sampler']} and is {self.settings.sampler.name}"
        if (change := change_of(self.named, *state["tasks"])) is not None:
            return change
        self.open = dict(state["open"])
        self._observed = deque(state["observed"], maxlen=REMEMBERED)
        self.counts.restore(state["counts"])
        if self.sampler is not None and state["state"] is not None:
            self.sampler.restore(state["state"])
        return None

    def _repeat(self, event: SamplerEvent) -> bool:
        """Do again what an earlier life did; True if the sampler draws another task."""
        self._events += 1
        sampler = self.sampler
        if isinstance(event, TaskDrawn):
            task = None if sampler is None else sampler.draw()
            if event.place != UNCOUNTED:
                self.open[event.place] = event.number
            return task is None or task.number != event.number
        if event.rollout is not None:
            self._observed.append(event.rollout)
        group = group_of_event(event, () if sampler is None else sampler.tasks)
        self.counts.add(group)
        if sampler is not None:
            sampler.observe(group)
        return False

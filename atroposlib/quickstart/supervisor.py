"""What happens when a process of the run dies: stop, or wait until it was restarted.

    OURS --died--> MISSING --its sign of life is back--> BY_HAND --sign of life gone--> MISSING
                      '--grace is over--> RunFailed

The trainer and the inference server hold the state of the run in memory: without them it
ends. The rollout API resumes from its data directory and an environment registers again, so
both may come back; the launcher shows the command and waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from atroposlib.processes import Child, ProcessSpec, RunFailed, log_tail

FRESH_S = 5.0  # a sign of life this old still speaks for a live process
LOST_AFTER_S = 10.0  # a process restarted by hand is missing once it was silent this long

# Given the time of death, on the clock of check(): is there a sign of life since then?
Probe = Callable[[float], bool]


class Presence(Enum):
    OURS = "ours"  # the process that the launcher started
    MISSING = "missing"  # it ended; the grace period runs
    BY_HAND = "by hand"  # somebody restarted it; only its sign of life is known


@dataclass
class Watched:
    """A restartable process as the supervisor knows it."""

    child: Child
    probe: Probe
    presence: Presence = Presence.OURS
    was_alive: bool = False  # it gave a sign of life once
    died_at: float = 0.0
    last_seen: float = 0.0

    @property
    def spec(self) -> ProcessSpec:
        return self.child.spec


class Supervisor:
    """Looks at every process of the run; ``say`` shows a line to the user."""

    def __init__(
        self,
        children: Iterable[Child],
        probes: dict[str, Probe],
        grace_s: float,
        say: Callable[[str], None],
    ) -> None:
        everyone = list(children)
        self._vital = [child for child in everyone if not child.spec.restartable]
        self._restartable = [
            Watched(child, probes[child.spec.name])
            for child in everyone
            if child.spec.restartable
        ]
        self._grace_s = grace_s
        self._say = say
        self.restarts: list[str] = []  # names, in the order in which they came back

    def check(self, now: float, finished: frozenset[str] = frozenset()) -> None:
        """One look at ``now`` seconds of a monotonic clock.

        ``finished`` names processes that may end with exit code 0 without being missed.

        Raises:
            RunFailed: a vital process ended, or a grace period is over.
        """
        for child in self._vital:
            ended = child.exit()
            if ended is None or (ended.returncode == 0 and child.spec.name in finished):
                continue
            raise RunFailed(
                f"{child.spec.name} died ({ended}); the run stops", child.log_tail()
            )
        for watched in self._restartable:
            self._check_restartable(watched, now, finished)

    def missing(self) -> list[str]:
        return [w.spec.name for w in self._restartable if w.presence is Presence.MISSING]

    def by_hand(self, now: float) -> list[str]:
        """Live processes that somebody else started and that the launcher will not end."""
        return [
            w.spec.name
            for w in self._restartable
            if w.presence is Presence.BY_HAND and w.probe(now - FRESH_S)
        ]

    def _check_restartable(self, w: Watched, now: float, finished: frozenset[str]) -> None:
        if w.presence is Presence.OURS:
            w.was_alive = w.was_alive or w.probe(0.0)
            ended = w.child.exit()
            if ended is None or (ended.returncode == 0 and w.spec.name in finished):
                return
            if not w.was_alive:  # it cannot even start: the same command would fail again
                raise RunFailed(
                    f"{w.spec.name} ended before it was ready ({ended}); the run stops",
                    w.child.log_tail(),
                )
            self._miss(w, now, f"{w.spec.name} died ({ended})")
        elif w.presence is Presence.MISSING:
            if w.probe(w.died_at):
                w.presence, w.last_seen = Presence.BY_HAND, now
                self.restarts.append(w.spec.name)
                self._say(
                    f"{w.spec.name} is back after {now - w.died_at:.0f} s: the run goes on"
                )
            elif now - w.died_at > self._grace_s:
                raise RunFailed(
                    f"{w.spec.name} was not restarted within {self._grace_s:.0f} s; the run stops",
                    w.child.log_tail(),
                )
        elif w.probe(w.last_seen):
            w.last_seen = now
        elif now - w.last_seen > LOST_AFTER_S and w.spec.name not in finished:
            self._miss(w, now, f"{w.spec.name} gives no sign of life any more")

    def _miss(self, w: Watched, now: float, line: str) -> None:
        w.presence, w.died_at = Presence.MISSING, now
        if tail := log_tail(w.child.log, 5):
            self._say(f"the end of {w.child.log}:\n{tail}")
        self._say(f"{line}; restart it within {self._grace_s:.0f} s and the run goes on:")
        self._say(w.spec.shell_line())

"""Supervisor of the processes of a run: start order, readiness, watch, restart rule.

    start_servers   every process with a health URL and the early processes; wait for answers
    start_workers   the other processes
    watch           look at every process until the run is done

A restart rule decides about a process that ended: :class:`StopOnExit`,
:class:`RestartByHand`, or a rule of a launcher.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from atroposlib.processes.children import (
    POLL_S,
    Child,
    Children,
    Exit,
    ProcessSpec,
    RunFailed,
    StopRequest,
    log_tail,
)

FRESH_S = 5.0  # age up to which a sign of life counts as current
LOST_AFTER_S = 10.0  # silence after which a process restarted by hand counts as missing

# (time of death on the clock of Supervisor.look) -> whether there was a sign of life since
SignOfLife = Callable[[float], bool]
PrintLine = Callable[[str], None]


class RestartRule(Protocol):
    """Reaction to the end of a process."""

    def look(self, run: Supervisor, child: Child, ended: Exit | None, now: float) -> None:
        """Look at a process; ``ended`` is None while it runs.

        Not called for a process that ended with exit code 0 and may do so. Raises RunFailed:
        the run cannot go on without the process.
        """


class StopOnExit:
    """Rule that ends the run when any process ends."""

    def look(self, run: Supervisor, child: Child, ended: Exit | None, now: float) -> None:
        if ended is not None:
            raise child.failure(f"{child.spec.name} died ({ended}); log: {child.log}")


class Supervisor:
    """Supervisor that starts and watches the processes of a run; ``children`` ends the processes.

    Args:
        specs: in the order of their start, servers before the rest.
        may_end: names of the processes that exit code 0 completes; called at every look.
        print_line: prints a line for the user.
        print_incident: prints a line for deaths, restarts and silence; ``print_line`` by default.
    """

    def __init__(
        self,
        specs: Iterable[ProcessSpec],
        children: Children,
        stop: StopRequest,
        rule: RestartRule | None = None,
        *,
        may_end: Callable[[], Collection[str]] = frozenset,
        print_line: PrintLine = print,
        print_incident: PrintLine | None = None,
    ) -> None:
        self.specs = {spec.name: spec for spec in specs}
        self.children = children
        self.print_line = print_line
        self.print_incident = print_incident or print_line
        self.may_end = may_end
        self._stop = stop
        self._rule = rule or StopOnExit()
        self.completed: set[str] = set()  # processes that ended as they may

    def start_servers(
        self, on_wait: PrintLine = lambda _line: None, early: Collection[str] = ()
    ) -> None:
        """Start servers and ``early``. Raises RunFailed when a server does not answer in time."""
        servers = [name for name, spec in self.specs.items() if spec.health_url]
        for name in (*servers, *early):
            self.children.start(self.specs[name])
        self.children.wait_ready(servers, on_wait)

    def start_workers(self, started: Collection[str] = ()) -> None:
        """Start every process without a health URL, except processes already ``started``."""
        for spec in self.specs.values():
            if spec.health_url is None and spec.name not in started:
                self.children.start(spec)

    def has_completed(self, name: str) -> bool:
        """Whether the process ended with exit code 0."""
        return self.children[name].exit() == Exit(0)

    def watch(
        self,
        done: Callable[[], bool],
        *,
        what: str = "the run",
        within_s: float = float("inf"),
        observe: Callable[[], None] = lambda: None,
        poll_s: float = POLL_S,
    ) -> None:
        """Look at every process until ``done``; ``observe`` is called before each look.

        Raises:
            RunFailed: the restart rule gave up, or ``what`` was not done within ``within_s``.
            Interrupted: a stop was requested.
        """
        deadline = time.monotonic() + within_s
        while True:
            self._stop.check()
            observe()
            if done():
                return
            self.look(time.monotonic())
            if time.monotonic() > deadline:
                raise RunFailed(f"{what}: not done within {within_s:.0f} s")
            time.sleep(poll_s)

    def look(self, now: float) -> None:
        """Look at every process and its log, at ``now`` seconds of a monotonic clock."""
        self.children.keep_logs_small()
        for name in self.specs:
            child = self.children[name]
            ended = child.exit()
            if ended == Exit(0) and name in self.may_end():
                if name not in self.completed:
                    self.completed.add(name)
                    self.print_line(f"{name} is done")
            else:
                self._rule.look(self, child, ended, now)

    def restart(self, names: Iterable[str], *, pause_s: float, grace_s: float) -> None:
        """End the named processes, pause, start the processes in this order.

        A server answers before the next process of ``names`` starts.

        Raises:
            RunFailed: a server is not ready within its bound.
            Interrupted: a stop was requested.
        """
        chosen = list(names)
        self.children.end(chosen, grace_s)
        until = time.monotonic() + pause_s
        while (left_s := until - time.monotonic()) > 0:
            self._stop.check()
            time.sleep(min(POLL_S, left_s))
        for number, name in enumerate(chosen):
            self.children.start(self.specs[name])
            if number + 1 < len(chosen):
                self.children.wait_ready([name])


class ProcessState(Enum):
    """State of a restartable process, for :class:`RestartByHand`."""

    STARTED = "started"  # the supervisor's own child
    MISSING = "missing"  # it ended; the grace period is running
    BY_HAND = "by hand"  # the user restarted it; only its sign of life is visible


@dataclass
class _Watched:
    presence: ProcessState = ProcessState.STARTED
    was_alive: bool = False  # it sent a sign of life before
    died_at: float = 0.0
    last_seen: float = 0.0


class RestartByHand:
    """Wait ``grace_s`` for the user to restart a restartable process; else end the run.

        STARTED --died--> MISSING --sign of life--> BY_HAND --silence--> MISSING
                             '--grace is over--> RunFailed

    Args:
        signs: a sign of life for every restartable process, by name.
    """

    def __init__(self, signs: Mapping[str, SignOfLife], grace_s: float) -> None:
        self._signs = signs
        self._grace_s = grace_s
        self._watched = {name: _Watched() for name in signs}

    def look(self, run: Supervisor, child: Child, ended: Exit | None, now: float) -> None:
        name = child.spec.name
        if not child.spec.restartable:
            if ended is not None:
                raise child.failure(f"{name} died ({ended}); the run stops")
            return
        w, sign = self._watched[name], self._signs[name]
        if w.presence is ProcessState.STARTED:
            w.was_alive = w.was_alive or sign(0.0)
            if ended is None:
                return
            if not w.was_alive:  # the same command would fail again
                raise child.failure(
                    f"{name} ended before it was ready ({ended}); the run stops"
                )
            self._miss(run, child, now, f"{name} died ({ended})")
        elif w.presence is ProcessState.MISSING:
            waited_s = now - w.died_at
            if sign(w.died_at):
                w.presence, w.last_seen = ProcessState.BY_HAND, now
                run.print_incident(f"{name} is back after {waited_s:.0f} s: the run goes on")
            elif waited_s > self._grace_s:
                line = f"{name} was not restarted within {self._grace_s:.0f} s"
                raise child.failure(f"{line}; the run stops")
        elif sign(w.last_seen):
            w.last_seen = now
        elif now - w.last_seen > LOST_AFTER_S and name not in run.may_end():
            self._miss(run, child, now, f"{name} gives no sign of life any more")

    def missing(self) -> list[str]:
        """Names of the processes in their grace period."""
        return [
            name for name, w in self._watched.items() if w.presence is ProcessState.MISSING
        ]

    def by_hand(self, now: float) -> list[str]:
        """Names of live processes that the user restarted and the supervisor does not end."""
        return [
            name
            for name, w in self._watched.items()
            if w.presence is ProcessState.BY_HAND and self._signs[name](now - FRESH_S)
        ]

    def _miss(self, run: Supervisor, child: Child, now: float, line: str) -> None:
        watched = self._watched[child.spec.name]
        watched.presence, watched.died_at = ProcessState.MISSING, now
        if tail := log_tail(child.log, 5):
            run.print_incident(f"the end of {child.log}:\n{tail}")
        run.print_incident(
            f"{line}; restart it within {self._grace_s:.0f} s and the run goes on:"
        )
        run.print_incident(child.spec.shell_line())

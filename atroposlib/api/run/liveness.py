"""Liveness: ages of heartbeats and requests, and the processes that are live or silent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from uuid import uuid4

from atroposlib.api.common.run_record import EnvEntry
from atroposlib.api.decisions.run_state import MINIMUM_TIMEOUT_S, silent_after_s
from atroposlib.api.decisions.stalled import REPORT_S, directory, participants, require_short
from atroposlib.wire import Heartbeat, Participant, ServerDirectory
from atroposlib.wire.status import ServerState

FORGET_AFTER_S = 3600.0
# limit of each role; names cost memory, so the oldest are dropped first
MAX_PARTICIPANTS = 1024
MAX_SERVERS = 1024
SYNC_S = MINIMUM_TIMEOUT_S / 4  # time between two notes of a request in the run's document
_NOBODY: Mapping[int, float] = {}


@dataclass(frozen=True, slots=True)
class _Live:
    """Environments live from ``since`` to ``until`` unless a silent environment calls.

    Cached because a hundred environments poll ten times a second.
    """

    envs: Sequence[EnvEntry]
    seen: Mapping[int, float]
    since: float
    until: float
    live: tuple[EnvEntry, ...]
    ids: set[int]

    def knows(self, env_id: int) -> bool:
        return bool(self.envs) and env_id <= self.envs[-1].env_id


def _silence_s(stopped: float | None, noted: float) -> float:
    """Silence of an environment when the process before this process stopped.

    Nobody could call while the API was away, so that time does not count. Without notes (of an
    older release) nobody was silent.

    Args:
        stopped: the last note of any environment, about the end of the process before.
        noted: the last note of this environment.
    """
    return 0.0 if stopped is None else max(0.0, stopped - noted)


class Liveness:
    """Heartbeats and requests with their ages, by the clock of the API."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._instance, self._began = uuid4().hex, clock()
        self._since = self._began
        # Keys: role and name; oldest first.
        self._beats: dict[str, dict[str, tuple[Heartbeat, float]]] = {}
        # Keys: URL, then role and name of the caller; with the time of its report.
        self._servers: dict[str, dict[tuple[str, str], tuple[ServerState, float]]] = {}
        self._freshened = self._began
        self._calls: dict[int, float] = {}
        self._lives: dict[str, float] = {}  # trainer life -> last heartbeat; inf: ended
        self._live: _Live | None = None

    def silent_s(self, life: str) -> float | None:
        """Seconds since the last heartbeat of a trainer's life; None: the life has ended.

        A restart of the API counts as a heartbeat of every trainer.
        """
        heard = max(self._since, self._lives.get(life, 0.0))
        return None if heard == inf else self._clock() - heard

    def record_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Store the latest heartbeat of a process.

        Raises:
            ConfigError: its details exceed the bounds.
        """
        require_short(heartbeat.details)
        now = self._clock()
        who = (heartbeat.role, heartbeat.name)
        alike = self._beats.setdefault(heartbeat.role, {})
        alike.pop(heartbeat.name, None)  # re-inserted at the end, so the first is the oldest
        alike[heartbeat.name] = (heartbeat, now)
        self._record_servers(who, heartbeat.servers, now)
        if heartbeat.role == "trainer" and (life := str(heartbeat.details.get("life", ""))):
            self._lives.pop(life, None)
            self._lives[life] = inf if "ended" in heartbeat.details else now
            if len(self._lives) > MAX_PARTICIPANTS:
                del self._lives[next(iter(self._lives))]
        while now - alike[first := next(iter(alike))][1] > FORGET_AFTER_S or (
            len(alike) > MAX_PARTICIPANTS
        ):
            del alike[first]

    def _record_servers(
        self, who: tuple[str, str], states: Sequence[ServerState], now: float
    ) -> None:
        for state in states:
            if state.url in self._servers or len(self._servers) < MAX_SERVERS:
                self._servers.setdefault(state.url, {})[who] = (state, now)
        if 0 <= now - self._freshened < REPORT_S / 10:  # each environment reports each server
            return
        self._freshened = now
        for url, reports in list(self._servers.items()):
            fresh = {
                who: report for who, report in reports.items() if now - report[1] <= REPORT_S
            }
            self._servers[url] = fresh
            if not fresh:
                del self._servers[url]

    def record_request(self, env_id: int | None) -> None:
        if env_id is not None:
            self._calls[env_id] = self._clock()
            known = self._live
            if known and env_id not in known.ids and known.knows(env_id):
                self._live = None  # it was silent until now

    def forget_envs(self) -> None:
        """Forget all requests: a new run numbers its environments from 0."""
        self._calls.clear()
        self._live = None
        self._since = self._clock()

    def keep(self, env_ids: Iterable[int]) -> None:
        """Forget the requests of environments that are not in ``env_ids``."""
        self._calls = {env: self._calls[env] for env in env_ids if env in self._calls}

    def live(
        self, envs: Sequence[EnvEntry], seen: Mapping[int, float] = _NOBODY
    ) -> Sequence[EnvEntry]:
        """Environments that hold a share: connected and not silent.

        Returns the same object until that changes. ``seen`` maps environments to the noted time
        of their last request to this process, its predecessor or another replica.
        """
        known, now = self._live, self._clock()
        if not known or known.seen is not seen or not known.since <= now <= known.until:
            known = _Live((), seen, now, inf, (), set())
        elif known.envs is envs:
            return known.live
        elif envs[: len(known.envs)] != known.envs:  # changes beyond new environments
            known = _Live((), seen, now, inf, (), set())
        live, ends = [], known.until
        stopped = max((at for at in seen.values() if at <= self._since), default=None)
        for env in envs[len(known.envs) :]:
            noted = max(seen.get(env.env_id, 0.0), env.joined)
            heard = self._calls.get(env.env_id)
            if heard is None:
                heard = self._since - _silence_s(stopped, noted)
            heard = max(heard, noted)
            if env.connected and (until := heard + silent_after_s(env)) >= now:
                live.append(env)
                ends = min(ends, until)
        known.ids.update(env.env_id for env in live)
        all_live = (*known.live, *live) if live else known.live
        self._live = _Live(envs, seen, known.since, ends, all_live, known.ids)
        return all_live

    def pending_sync(self, seen: Mapping[int, float]) -> dict[int, float]:
        """``seen`` merged with the requests received here, if a sync is due; otherwise empty.

        A sync is due before another replica, or this process after a restart, would count an
        environment as silent, so the number of writes does not depend on the load.
        """
        if all(at - seen.get(env, 0.0) < SYNC_S for env, at in self._calls.items()):
            return {}
        merged = dict(seen)
        for env, at in self._calls.items():
            merged[env] = max(at, merged.get(env, 0.0))
        return merged

    def directory(self) -> ServerDirectory:
        """Inference servers whose announcement is fresh."""
        now = self._clock()
        return directory(self._all_beats(), self._servers, now, self._instance, self._began)

    def _all_beats(self) -> list[tuple[Heartbeat, float]]:
        return [beat for alike in self._beats.values() for beat in alike.values()]

    def participants(self) -> list[Participant]:
        """Processes, and inference servers from all reports."""
        now = self._clock()
        fresh = (beat for beat in self._all_beats() if now - beat[1] <= FORGET_AFTER_S)
        return participants(fresh, self._servers, now)

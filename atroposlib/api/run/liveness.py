"""Liveness: last heartbeat per process, last request per environment. In memory.

After a restart of the API every environment counts as live for one full period, so that none
loses its share because it could not call. Where several replicas serve one run, each writes
the requests that it received into the run document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from atroposlib.api.common.records import EnvEntry
from atroposlib.errors import ConfigError
from atroposlib.wire import Heartbeat, Participant

FORGET_AFTER_S = 3600.0
MAX_PARTICIPANTS = (
    1024  # the oldest are dropped first; names come from callers and cost memory
)
MAX_DETAILS = 64
MAX_DETAIL_CHARACTERS = 200
_NOBODY: Mapping[int, float] = {}


@dataclass(frozen=True, slots=True)
class _Live:
    """Environments live from ``since`` to ``until`` unless a silent one calls.

    Cached because a hundred environments poll ten times a second.
    """

    envs: Sequence[EnvEntry]
    seen: Mapping[int, float]
    since: float
    until: float
    live: tuple[EnvEntry, ...]
    ids: frozenset[int]


class Liveness:
    """Heartbeats and requests with their ages, by the clock of the API."""

    def __init__(self, clock: Callable[[], float], silent_after_s: float) -> None:
        self._clock = clock
        self._silent_after_s = silent_after_s
        self._since = clock()
        self._beats: dict[tuple[str, str], tuple[Heartbeat, float]] = {}
        self._calls: dict[int, float] = {}
        self._live: _Live | None = None

    def record_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Store the latest heartbeat of a process.

        Raises:
            ConfigError: its details exceed the bounds.
        """
        _require_short(heartbeat.details)
        now = self._clock()
        who = (heartbeat.role, heartbeat.name)
        self._beats.pop(who, None)  # re-inserted at the end, so the first is the oldest
        self._beats[who] = (heartbeat, now)
        for name, (_, seen) in list(self._beats.items()):
            if now - seen <= FORGET_AFTER_S and len(self._beats) <= MAX_PARTICIPANTS:
                break
            del self._beats[name]

    def record_request(self, env_id: int | None) -> None:
        if env_id is not None:
            self._calls[env_id] = self._clock()
            if self._live is not None and env_id not in self._live.ids:
                self._live = None  # it was silent until now

    def forget_envs(self) -> None:
        """Forget all requests: a new run numbers its environments from 0."""
        self._calls.clear()
        self._live = None
        self._since = self._clock()

    def live(
        self, envs: Sequence[EnvEntry], seen: Mapping[int, float] | None = None
    ) -> Sequence[EnvEntry]:
        """Environments that hold a share: connected and not silent.

        Returns the same object until that changes. ``seen`` maps environments to the time of
        their last request to another replica.
        """
        seen = seen if seen is not None else _NOBODY
        known, now = self._live, self._clock()
        if known and known.envs is envs and known.seen is seen:
            if known.since <= now <= known.until:
                return known.live
        heard = {
            env.env_id: max(
                self._calls.get(env.env_id, self._since), seen.get(env.env_id, 0.0)
            )
            for env in envs
            if env.connected
        }
        oldest = now - self._silent_after_s
        live = tuple(env for env in envs if heard.get(env.env_id, -inf) >= oldest)
        ends = min((heard[env.env_id] for env in live), default=inf) + self._silent_after_s
        ids = frozenset(env.env_id for env in live)
        self._live = _Live(envs, seen, now, ends, live, ids)
        return live

    def pending_sync(self, seen: Mapping[int, float]) -> dict[int, float]:
        """``seen`` merged with the requests received here, if a sync is due; otherwise empty.

        A sync is due before another replica would count an environment as silent, so the
        number of writes does not depend on the load.
        """
        due = self._silent_after_s / 4
        if all(at - seen.get(env, 0.0) < due for env, at in self._calls.items()):
            return {}
        merged = dict(seen)
        for env, at in self._calls.items():
            merged[env] = max(at, merged.get(env, 0.0))
        return merged

    def participants(self) -> list[Participant]:
        now = self._clock()
        return [
            Participant(**heartbeat.model_dump(), age_s=max(0.0, now - seen))
            for heartbeat, seen in self._beats.values()
            if now - seen <= FORGET_AFTER_S
        ]


def _require_short(details: Mapping[str, float | int | str]) -> None:
    longest = max((len(str(part)) for item in details.items() for part in item), default=0)
    if len(details) > MAX_DETAILS or longest > MAX_DETAIL_CHARACTERS:
        raise ConfigError(
            f"details: at most {MAX_DETAILS}, of {MAX_DETAIL_CHARACTERS} characters each"
        )

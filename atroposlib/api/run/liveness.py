"""Who is there: heartbeats of processes and last calls of environments. In memory only.

After a restart of the API everybody counts as present for one full period, so nobody
loses a share for having been unable to call. Where several replicas serve one run, each
tells the others through the run which environments it has heard of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from atroposlib.api.common.records import EnvEntry
from atroposlib.errors import ConfigError
from atroposlib.wire import Heartbeat, Participant

FORGET_AFTER_S = 3600.0
MAX_PARTICIPANTS = 1024  # the oldest go first; names come from callers and cost memory
MAX_DETAILS = 64
MAX_DETAIL_CHARACTERS = 200
_NOBODY: Mapping[int, float] = {}


@dataclass(frozen=True, slots=True)
class _Live:
    """Who was live at ``since``, and is until ``until`` unless somebody silent calls: a
    hundred environments ask for it ten times a second."""

    envs: Sequence[EnvEntry]
    seen: Mapping[int, float]
    since: float
    until: float
    live: tuple[EnvEntry, ...]
    ids: frozenset[int]


class Liveness:
    """Ages are measured with the clock of the API."""

    def __init__(self, clock: Callable[[], float], silent_after_s: float) -> None:
        self._clock = clock
        self._silent_after_s = silent_after_s
        self._since = clock()
        self._beats: dict[tuple[str, str], tuple[Heartbeat, float]] = {}
        self._calls: dict[int, float] = {}
        self._live: _Live | None = None

    def record_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Remember what a process says about itself.

        Raises:
            ConfigError: it says more than anybody would show.
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
                self._live = None  # it was silent

    def forget_envs(self) -> None:
        """A new run numbers its environments anew."""
        self._calls.clear()
        self._live = None
        self._since = self._clock()

    def live(
        self, envs: Sequence[EnvEntry], seen: Mapping[int, float] | None = None
    ) -> Sequence[EnvEntry]:
        """Environments that hold a share: neither gone nor silent. The same object as
        before while that is so.

        ``seen`` is when other replicas last heard of them.
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
        """``seen`` with all calls heard here, if that is due; otherwise empty.

        Due is what the others would soon take for silence: few writes, whatever the load.
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

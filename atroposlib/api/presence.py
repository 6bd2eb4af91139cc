"""Who is there: heartbeats of processes and last calls of environments. In memory only.

After a restart of the API everybody counts as present for one full period, so nobody
loses a share for having been unable to call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from atroposlib.api.records import EnvEntry
from atroposlib.wire import Heartbeat, Participant

FORGET_AFTER_S = 3600.0
MOST_PARTICIPANTS = 1024  # the oldest go first; names come from callers and cost memory


class Presence:
    """Ages are measured with the clock of the API."""

    def __init__(self, clock: Callable[[], float], silent_after_s: float) -> None:
        self._clock = clock
        self._silent_after_s = silent_after_s
        self._since = clock()
        self._beats: dict[tuple[str, str], tuple[Heartbeat, float]] = {}
        self._calls: dict[int, float] = {}

    def beat(self, heartbeat: Heartbeat) -> None:
        now = self._clock()
        who = (heartbeat.role, heartbeat.name)
        self._beats.pop(who, None)  # re-inserted at the end, so the first is the oldest
        self._beats[who] = (heartbeat, now)
        for name, (_, seen) in list(self._beats.items()):
            if now - seen <= FORGET_AFTER_S and len(self._beats) <= MOST_PARTICIPANTS:
                break
            del self._beats[name]

    def called(self, env_id: int | None) -> None:
        if env_id is not None:
            self._calls[env_id] = self._clock()

    def forget_envs(self) -> None:
        """A new run numbers its environments anew."""
        self._calls.clear()
        self._since = self._clock()

    def live(self, envs: Sequence[EnvEntry]) -> list[EnvEntry]:
        """Environments that hold a share: neither gone nor silent."""
        oldest = self._clock() - self._silent_after_s
        return [
            env
            for env in envs
            if env.connected and self._calls.get(env.env_id, self._since) >= oldest
        ]

    def participants(self) -> list[Participant]:
        now = self._clock()
        return [
            Participant(**heartbeat.model_dump(), age_s=max(0.0, now - seen))
            for heartbeat, seen in self._beats.values()
            if now - seen <= FORGET_AFTER_S
        ]

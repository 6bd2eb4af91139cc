"""Which queued groups are too old to train on, and what happens to them. Pure.

Staleness counts policy versions: the version now, less the oldest version that sampled a
token of the group. Part of it is born in flight (the version when the group came in,
less its own), the rest in the queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from atroposlib.api.common.records import GroupSummary
from atroposlib.wire import StalenessPolicy


@dataclass(frozen=True, slots=True)
class StalenessRule:
    """What a claim does with old groups; ``max_staleness`` None sets no bound."""

    policy: StalenessPolicy = "keep"
    max_staleness: int | None = None  # policy versions
    policy_version: int = 0  # now

    @property
    def oldest_version(self) -> int | None:
        """The oldest version within the bound, if there is a bound to enforce."""
        if self.policy == "keep" or self.max_staleness is None:
            return None
        return self.policy_version - self.max_staleness

    @property
    def mask_below(self) -> int | None:
        """Tokens of versions below it are masked at delivery. None: nothing is masked."""
        return self.oldest_version if self.policy == "mask" else None

    def drops(self, group: GroupSummary) -> bool:
        """Whether a claim frees ``group`` instead of delivering it."""
        if self.policy != "drop" or self.oldest_version is None:
            return False
        version = version_of(group)
        return version is not None and version < self.oldest_version

    def split(
        self, queue: Iterable[GroupSummary]
    ) -> tuple[list[GroupSummary], tuple[int, ...]]:
        """The groups that may be trained on, and the gids of those to be freed."""
        fresh, stale = [], []
        for group in queue:
            if self.drops(group):
                stale.append(group.gid)
            else:
                fresh.append(group)
        return fresh, tuple(stale)


def version_of(group: GroupSummary) -> int | None:
    """Its own version, or for a sender that names none the newest it can have: that of
    its arrival. None if neither is known."""
    return group.version if group.version is not None else group.arrived_version

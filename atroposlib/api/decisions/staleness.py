"""Treatment of stale groups. Pure.

Staleness counts policy versions: the current version less the oldest version that sampled a
token of the group. A part arises in flight (the version at arrival less the version of the
group), the rest in the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atroposlib.api.common.records import GroupSummary
from atroposlib.api.common.run_record import RunRecord
from atroposlib.wire import StalenessPolicy


@dataclass(frozen=True, slots=True)
class StalenessRule:
    """Treatment of stale groups by a claim; ``max_staleness`` None sets no bound."""

    policy: StalenessPolicy = "keep"
    max_staleness: int | None = None  # policy versions
    policy_version: int = 0  # current

    @classmethod
    def of(cls, run: RunRecord) -> StalenessRule:
        trainer = run.registration
        return cls(trainer.staleness_policy, trainer.max_staleness, run.policy_version)

    @property
    def oldest_version(self) -> int | None:
        """The oldest version within the bound, if there is a bound to enforce."""
        if self.policy == "keep" or self.max_staleness is None:
            return None
        return self.policy_version - self.max_staleness

    @property
    def mask_below(self) -> int | None:
        """Tokens of versions below it are masked at delivery; None masks nothing."""
        return self.oldest_version if self.policy == "mask" else None

    def drops(self, group: GroupSummary) -> bool:
        """Whether a claim frees ``group`` instead of delivering it."""
        return self.policy == "drop" and group.is_older_than(self.oldest_version)

    def split(
        self, queue: Sequence[GroupSummary]
    ) -> tuple[list[GroupSummary], tuple[int, ...]]:
        """The groups to train on, and the gids of the groups to free."""
        fresh: list[GroupSummary] = []
        stale: list[GroupSummary] = []
        for group in queue:
            (stale if self.drops(group) else fresh).append(group)
        return fresh, tuple(group.gid for group in stale)

"""Selection of the groups of the next batch. Pure.

    queue -> staleness (drop) -> fair share (order by weights) -> exact fill (minima kept)

The fair share sets the order of preference. The exact fill takes the first choice in that
order that has exactly the size of a batch and keeps every minimum. So a batch is formed
whenever one exists, and its groups are trained on oldest first.

Staleness counts policy versions: the current version less the oldest version that sampled a
token of the group. One part arises in flight (the version at arrival less the version of the
group), the rest in the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from atroposlib.api.common.records import GroupSummary, Selection
from atroposlib.api.decisions import fair_share
from atroposlib.api.decisions.blocked import no_batch
from atroposlib.api.decisions.exact_fill import first_exact
from atroposlib.wire import StalenessPolicy


@dataclass(frozen=True, slots=True)
class StalenessRule:
    """Treatment of stale groups by a claim; ``max_staleness`` None sets no bound."""

    policy: StalenessPolicy = "keep"
    max_staleness: int | None = None  # policy versions
    policy_version: int = 0  # current

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
        if self.policy != "drop" or self.oldest_version is None:
            return False
        version = group.oldest_version
        return version is not None and version < self.oldest_version

    def split(
        self, queue: Iterable[GroupSummary]
    ) -> tuple[list[GroupSummary], tuple[int, ...]]:
        """The groups to train on, and the gids of the groups to free."""
        fresh, stale = [], []
        for group in queue:
            if self.drops(group):
                stale.append(group.gid)
            else:
                fresh.append(group)
        return fresh, tuple(stale)


KEEP_ALL = StalenessRule()


def choose(
    queue: Sequence[GroupSummary],
    state_bytes: bytes | None = None,
    *,
    batch_size: int,
    needs: Mapping[int, int] | None = None,
    weights: fair_share.EnvWeights | None = None,
    names: Mapping[int, str] | None = None,
    policy: StalenessRule = KEEP_ALL,
) -> Selection:
    """Choose groups with exactly ``batch_size`` sequences, none split.

    Args:
        queue: the pending groups, oldest first.
        state_bytes: ``Selection.fair_share`` of the last selection with a batch.
        needs: minimum sequences per batch, by env (see ``allocation``).
        weights: relative share of each env in the trained tokens; 1 by default.
        names: names of environments for ``blocked_reason``.
        policy: treatment of stale groups.

    Raises:
        StoreError: ``state_bytes`` cannot be decoded.
    """
    needs, weights = needs or {}, weights or {}
    fresh, dropped = policy.split(queue)
    state = fair_share.decode(state_bytes)
    ordered = fair_share.order(fresh, weights, state)
    places = first_exact([(group.env, group.n_seq) for group in ordered], batch_size, needs)
    if places is None:
        counts = Counter((group.env, group.n_seq) for group in fresh)
        reason = no_batch(counts, batch_size, needs, names or {})
        return Selection(blocked_reason=reason, dropped=dropped)
    chosen = [ordered[place] for place in places]
    return Selection(
        gids=tuple(sorted(group.gid for group in chosen)),
        dropped=dropped,
        min_version=policy.mask_below,
        fair_share=fair_share.encode(fair_share.after(state, fresh, chosen, weights)),
    )


def complete_buffer(buffer: Sequence[tuple[int, int]], expected: int) -> list[int]:
    """The gids of the earliest groups of a buffer that add up to ``expected`` sequences.

    ``buffer`` lists (gid, n_seq), oldest first. Empty if nothing adds up.
    """
    places = first_exact([(None, n_seq) for _, n_seq in buffer], expected) or []
    return [buffer[place][0] for place in places]

"""Selection of the groups of the next batch, or the reason why there is none. Pure.

    queue -> staleness (drop) -> fair share (order by weights) -> exact fill (minima kept)

The fair share sets the order of preference. The exact fill takes the first choice in that
order that has exactly the size of a batch and keeps every minimum. So a batch is formed
whenever an exact batch exists, and its groups are trained on oldest first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from atroposlib.api.common.records import GroupSummary, Selection
from atroposlib.api.decisions import fair_share
from atroposlib.api.decisions.blocked import no_batch
from atroposlib.api.decisions.exact_fill import Key, first_exact
from atroposlib.api.decisions.staleness import StalenessRule


def choose(
    queue: Sequence[GroupSummary],
    state_bytes: bytes | None = None,
    *,
    batch_size: int,
    needs: Mapping[int, int] | None = None,
    weights: fair_share.EnvWeights | None = None,
    names: Mapping[int, str] | None = None,
    policy: StalenessRule = StalenessRule(),
    full: bool = False,
) -> Selection:
    """Choose groups with exactly ``batch_size`` sequences, none split.

    Args:
        queue: the pending groups, oldest first.
        state_bytes: ``Selection.fair_share`` of the last selection with a batch.
        needs: minimum sequences per batch, by env (see ``allocation``).
        weights: relative share of each env in the trained tokens; 1 by default.
        names: names of environments for ``blocked_reason``.
        policy: treatment of stale groups.
        full: whether the store is full (``is_full``). Then a batch may miss the minima if none
            keeps the minima: posts that would meet a minimum are refused, and only a batch
            makes room. It holds the queued groups of these environments, if some batch does.
    """
    needs, weights = needs or {}, weights or {}
    fresh, dropped = policy.split(queue)
    state = fair_share.decode(state_bytes)
    ordered = fair_share.order(fresh, weights, state)
    kinds = [(group.env, group.n_seq) for group in ordered]
    places = first_exact(kinds, batch_size, needs)
    if places is None and full and needs:
        places = _with_what_is_queued(kinds, batch_size, needs)
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


def _with_what_is_queued(
    kinds: Sequence[Key], batch_size: int, needs: Mapping[int, int]
) -> list[int] | None:
    held: Counter[int | None] = Counter()
    for env, n_seq in kinds:
        held[env] += n_seq
    queued = {env: min(need, held[env]) for env, need in needs.items()}
    return first_exact(kinds, batch_size, queued) or first_exact(kinds, batch_size, {})


def complete_buffer(buffer: Sequence[tuple[int, int]], expected: int) -> list[int]:
    """The gids of the earliest groups of a buffer that add up to ``expected`` sequences.

    ``buffer`` lists (gid, n_seq), oldest first. Empty if nothing adds up.
    """
    places = first_exact([(None, n_seq) for _, n_seq in buffer], expected) or []
    return [buffer[place][0] for place in places]

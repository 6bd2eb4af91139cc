"""The reason why the next claim gets no batch: the text of /status and of the claim. Pure.

It is computed from counts by kind, so its cost does not depend on the length of the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from atroposlib.api.common.records import GroupState, StoreStats
from atroposlib.api.common.run_record import EnvEntry, RunRecord
from atroposlib.api.decisions.exact_fill import (
    Key,
    is_feasible,
    min_sum,
    minima_of,
    minimum_sequences,
    sizes_in_batches,
)
from atroposlib.api.decisions.run_state import ENV_TIMEOUT_S, MINIMUM_TIMEOUT_S
from atroposlib.api.decisions.staleness import StalenessRule
from atroposlib.api.decisions.steering import held_back, pauses

Counts = Mapping[Key, int]  # groups queued, by (env, n_seq)
MAX_LISTED = 8  # parts of a list in a message


FULL = 0.9  # share of the bound on bytes: the next post may be refused


def is_full(stats: StoreStats, max_bytes: int) -> bool:
    return stats.retained_bytes >= FULL * max_bytes


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a reason can name, besides the numbers of the store."""

    batch_size: int
    needs: Mapping[int, int]
    names: Mapping[int, str]
    max_bytes: int = 2**63
    rule: StalenessRule = StalenessRule()
    # queued; the next claim drops these groups
    stale: Mapping[Key, int] = field(default_factory=dict)
    admitted: Mapping[int | None, int] = field(default_factory=dict)  # sequences, by env
    held: Collection[int | None] = ()  # environments whose groups wait
    pauses: str | None = None  # environments that an operator paused

    @classmethod
    def of(
        cls,
        run: RunRecord,
        live: Sequence[EnvEntry],
        max_bytes: int,
        stale: Mapping[Key, int],
        admitted: Mapping[int | None, int],
    ) -> Situation:
        size = run.registration.batch_size
        needs = minimum_sequences(minima_of(live), size)
        names = {env.env_id: env.wandb_name for env in live}
        now = cls(size, needs, names, max_bytes, StalenessRule.of(run), stale, admitted)
        return _steered(now, run, live) if run.steering else now


def blocked_reason(stats: StoreStats, now: Situation) -> str | None:
    """The reason why the next claim gets no new batch; None if it gets a batch. The text of
    /status and of the claim."""
    counts = Counter(queued_counts(stats))
    counts.subtract(now.stale)
    counts = _without(counts, now.held) if now.held else +counts
    if is_feasible(counts, now.batch_size, now.needs):
        return None
    if is_full(stats, now.max_bytes) and is_feasible(counts, now.batch_size, {}):
        return None
    parts = [
        now.pauses,
        _full(stats, now),
        no_batch(counts, now.batch_size, now.needs, now.names),
        _stale(stats, now),
        _admitted(now),
    ]
    return "; ".join(part for part in parts if part)


def _steered(now: Situation, run: RunRecord, live: Sequence[EnvEntry]) -> Situation:
    return replace(now, held=held_back(run), pauses=pauses(run, live))


def _without(counts: Counter[Key], held: Collection[int | None]) -> Counter[Key]:
    return Counter({key: n for key, n in (+counts).items() if key[0] not in held})


def queued_counts(stats: StoreStats) -> Counts:
    """Queued groups by (env, n_seq)."""
    counts: Counter[Key] = Counter()
    for count in stats.group_counts:
        if count.state is GroupState.PENDING:
            counts[count.env, count.n_seq] += count.groups
    return counts


def _full(stats: StoreStats, now: Situation) -> str | None:
    if not is_full(stats, now.max_bytes):
        return None
    held: Counter[GroupState] = Counter()
    for count in stats.group_counts:
        held[count.state] += count.n_bytes
    acked = stats.retained_bytes - held.total() - stats.dead_bytes
    holders = [
        (acked, f"{stats.batches_uncommitted} acked batches until POST /batches/N/commit"),
        (held[GroupState.PENDING] + held[GroupState.LEASED], "queued groups"),
        (held[GroupState.BUFFERED], "groups in buffers until whole or their env leaves"),
        (stats.dead_bytes, "dead batches (atropos api dead)"),
    ]
    ranked = sorted(holders, reverse=True)
    parts = _listed(f"{n_bytes} by {who}" for n_bytes, who in ranked if n_bytes)
    return f"the store is full, {stats.retained_bytes} of {now.max_bytes} bytes ({parts})"


def _stale(stats: StoreStats, now: Situation) -> str | None:
    stale, dropped = sum(now.stale.values()), stats.totals_of(GroupState.DROPPED).groups
    rule = now.rule
    if rule.oldest_version is None or not stale + dropped or rule.policy != "drop":
        return None
    return (
        f"{stale} queued groups are too stale and {dropped} were dropped: older than version "
        f"{rule.oldest_version} at policy version {rule.policy_version}. Do the servers "
        "sample with it? Only a registration of the trainer lowers it"
    )


def _admitted(now: Situation) -> str | None:
    if not any(now.admitted.values()):
        return None
    parts = _listed(
        f"{n_seq} of {_call(env, now.names)}" + " which left" * (env not in now.names)
        for env, n_seq in now.admitted.items()
    )
    return f"admitted and not posted: {parts}"


def starved(stats: StoreStats, batch_size: int, names: Mapping[int, str]) -> list[str]:
    """Kinds of queued groups that no batch can hold, even with more groups of these sizes."""
    counts = queued_counts(stats)
    fitting = sizes_in_batches({size for _, size in counts}, batch_size)
    return [
        f"groups of {size} of {_call(env, names)} fit no batch of {batch_size} together with "
        f"the other sizes ({_sizes(sorted(fitting))}): {count} wait"
        for (env, size), count in sorted(counts.items(), key=str)
        if size not in fitting
    ][:MAX_LISTED]


def uncommitted(stats: StoreStats, max_bytes: int) -> list[str]:
    """A trainer that registered with ``commits`` and commits nothing: its batches fill the store."""
    acked, held = stats.batches_acked, sum(count.n_bytes for count in stats.group_counts)
    kept = stats.retained_bytes - stats.dead_bytes - held
    if not acked or acked > stats.batches_uncommitted or kept <= max_bytes // 4:
        return []
    return [
        f"the trainer registered with commits and committed none of {acked} batches, which hold "
        f"{kept} of {max_bytes} bytes: POST /batches/N/commit after each checkpoint"
    ]


def no_batch(
    counts: Counts, batch_size: int, needs: Mapping[int, int], names: Mapping[int, str]
) -> str:
    """The reason, for ``counts`` without an exact batch that keeps every minimum."""
    usable = {key: count for key, count in counts.items() if 0 < key[1] <= batch_size}
    needs = {env: need for env, need in needs.items() if need > 0}
    reason = (
        _nothing(counts, usable, batch_size, names)
        or _impossible_minima(usable, batch_size, needs, names)
        or _too_few(usable, batch_size)
        or _unmet_minimum(usable, needs, names)
        or _no_combination(usable, batch_size, needs, names)
    )
    oversized = sum(counts.values()) - sum(usable.values())
    if oversized and usable:
        reason += f" (left out: {oversized} larger than a whole batch)"
    return reason


def _nothing(
    counts: Counts, usable: Counts, batch_size: int, names: Mapping[int, str]
) -> str | None:
    if usable:
        return None
    oversized = sorted(counts, key=lambda key: (key[1], key[0] is not None, key[0] or 0))
    if not oversized:
        return "the queue is empty: waiting for scored groups"
    who = _listed(f"{_call(env, names)} {size}" for env, size in oversized)
    return (
        f"every queued group is larger than a batch of {batch_size} sequences ({who}): "
        "raise the batch size, or lower the group size of the environments"
    )


def _too_few(usable: Counts, batch_size: int) -> str | None:
    queued = sum(size * count for (_, size), count in usable.items())
    if queued >= batch_size:
        return None
    return f"{queued} of {batch_size} sequences queued: waiting for scored groups"


def _unmet_minimum(
    usable: Counts, needs: Mapping[int, int], names: Mapping[int, str]
) -> str | None:
    held: Counter[int | None] = Counter()
    for (env, size), count in usable.items():
        held[env] += size * count
    for env, need in needs.items():
        if held[env] < need:
            return (
                f"each batch holds at least {need} sequences of {_call(env, names)}, "
                f"but {held[env]} are queued: waiting for it (POST /disconnect-env of env "
                f"{env}, or {MINIMUM_TIMEOUT_S:.0f} s of silence ({ENV_TIMEOUT_S:.0f} s of old "
                "clients), ends its minimum)"
            )
    return None


def _impossible_minima(
    usable: Counts, batch_size: int, needs: Mapping[int, int], names: Mapping[int, str]
) -> str | None:
    """A reason that more groups cannot remove, once each env with a minimum has queued."""
    sizes: dict[int, list[int]] = {
        env: sorted({size for owner, size in usable if owner == env}) for env in needs
    }
    if not needs or not all(sizes.values()):
        return None
    least = {env: min_sum(sizes[env], need, batch_size) for env, need in needs.items()}
    total = sum(count or batch_size + 1 for count in least.values())
    if total <= batch_size:
        return None
    parts = _listed(
        f"{_call(env, names)} at least {needs[env]} in groups of {_sizes(sizes[env])}"
        for env in needs
    )
    return (
        f"the minimum allocations can never be met by a batch of {batch_size} sequences "
        f"({parts}): lower them, or choose group sizes that fit"
    )


def _no_combination(
    usable: Counts, batch_size: int, needs: Mapping[int, int], names: Mapping[int, str]
) -> str:
    sizes: Counter[int] = Counter()
    for (_, size), count in usable.items():
        sizes[size] += count
    listed = _listed(f"{count} of size {size}" for size, count in sorted(sizes.items()))
    reason = f"no combination of the queued groups ({listed}) makes exactly {batch_size}"
    endless = {key: batch_size for key in usable}
    if needs and is_feasible(usable, batch_size):
        minima = _listed(f"{_call(env, names)} at least {need}" for env, need in needs.items())
        reason += f" sequences with the minimum allocations kept ({minima})"
    else:
        reason += " sequences"
    if is_feasible(endless, batch_size, needs):
        return reason + ": waiting for groups that fill the gap"
    return reason + ": choose a batch size that the group sizes divide"


def _call(env: int | None, names: Mapping[int, str]) -> str:
    if env is None:
        return "groups without env"
    return f"{names[env]} (env {env})" if env in names else f"env {env}"


def _sizes(sizes: Sequence[int]) -> str:
    return " or ".join(str(size) for size in sizes[:4]) + (" ..." if len(sizes) > 4 else "")


def _listed(parts: Iterable[str]) -> str:
    shown = list(parts)
    if len(shown) > MAX_LISTED:
        shown[MAX_LISTED:] = [f"{len(shown) - MAX_LISTED} more"]
    return ", ".join(shown)

"""Which groups make the next batch. Pure: summaries in, a selection out.

One rule decides everything: walk the queue from the oldest group and take each one,
unless no exact batch that honours every minimum contains it together with what was
taken before. So a batch is found whenever one exists, the oldest group that can be
served is served, and FIFO order falls out where groups simply add up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import gcd

from atroposlib.api.records import GroupSummary, Selection

# An env with a minimum is a class of its own; everybody else shares the class None.
Key = tuple[int | None, int]  # (class, size): groups with the same key are interchangeable


def select(
    queue: Sequence[GroupSummary],
    batch_size: int,
    needs: Mapping[int, int],
    names: Mapping[int, str] | None = None,
) -> Selection:
    """Choose groups with exactly ``batch_size`` sequences, oldest first, none split.

    Args:
        queue: the pending groups, oldest first.
        needs: sequences that each batch holds at least, by env (see ``allocation``).
        names: what to call an env in ``blocked_reason``.
    """
    obstacle = _obvious_obstacle(queue, batch_size, needs, names or {})
    if obstacle is not None:
        return Selection(blocked_reason=obstacle)
    keys = [(group.env, group.n_seq) for group in queue]
    chosen = oldest_first(keys, batch_size, needs)
    if chosen is None:
        return Selection(blocked_reason=_no_combination(keys, batch_size, needs, names or {}))
    return Selection(gids=tuple(queue[i].gid for i in chosen))


def oldest_first(
    keys: Sequence[Key], target: int, needs: Mapping[int, int] | None = None
) -> list[int] | None:
    """Indices of the lexicographically first subset that sums to ``target``, or None.

    Two facts keep it cheap. Feasibility of a prefix is monotone, so its length is found
    by bisection; and once a key is refused, each later group with that key is refused
    too (it could have stood in for the refused one). So there is one bisection per key.
    """
    needs = {env: need for env, need in (needs or {}).items() if need > 0}
    if target <= 0:
        return None
    keys = [(env if env in needs else None, size) for env, size in keys]
    unit = gcd(*(size for _, size in keys)) if keys else 1
    if target % unit:
        return None
    problem = _Problem(target // unit, {env: -(-need // unit) for env, need in needs.items()})
    candidates = _usable(keys, target)
    chosen: list[int] = []
    refused: set[Key] = set()
    while candidates:
        row = [(keys[i][0], keys[i][1] // unit) for i in candidates]
        taken = problem.longest_feasible_prefix(row)
        if taken < 0:
            return None
        chosen += candidates[:taken]
        problem.take(row[:taken])
        if problem.solved:
            return chosen
        refused.add(keys[candidates[taken]])
        candidates = [i for i in candidates[taken + 1 :] if keys[i] not in refused]
    return None


def _usable(keys: Sequence[Key], target: int) -> list[int]:
    """The oldest groups of each key, no more than could fit: the rest cannot matter."""
    seen: Counter[Key] = Counter()
    usable = []
    for i, key in enumerate(keys):
        if key[1] > 0 and seen[key] < target // key[1]:
            seen[key] += 1
            usable.append(i)
    return usable


class _Problem:
    """What is still to be filled: a total, and a rest of each minimum."""

    def __init__(self, room: int, needs: dict[int, int]) -> None:
        self.room = room
        self.needs = needs

    @property
    def solved(self) -> bool:
        return self.room == 0 and all(need <= 0 for need in self.needs.values())

    def take(self, row: Sequence[Key]) -> None:
        for env, size in row:
            self.room -= size
            if env is not None and env in self.needs:
                self.needs[env] -= size

    def longest_feasible_prefix(self, row: Sequence[Key]) -> int:
        """Length of the longest prefix that some exact batch contains whole, or -1."""
        filled = list(accumulate((size for _, size in row), initial=0))
        high = bisect_right(filled, self.room) - 1
        if filled[high] == self.room and self._feasible_after(row, high):
            return high  # the usual case: groups simply add up
        if not self._feasible_after(row, 0):
            return -1
        low = 0  # feasible; high + 1 is not
        while low < high:
            middle = (low + high + 1) // 2
            if self._feasible_after(row, middle):
                low = middle
            else:
                high = middle - 1
        return low

    def _feasible_after(self, row: Sequence[Key], taken: int) -> bool:
        rest = _Problem(self.room, dict(self.needs))
        rest.take(row[:taken])
        if rest.room < 0:
            return False
        counts: defaultdict[int | None, Counter[int]] = defaultdict(Counter)
        for env, size in row[taken:]:
            counts[env][size] += 1
        reach = _subset_sums(counts[None], rest.room)
        for env, need in rest.needs.items():
            sums = _subset_sums(counts[env], rest.room)
            reach = _pairwise_sums(reach, sums >> max(need, 0) << max(need, 0), rest.room)
        return bool(reach >> rest.room & 1)


def _subset_sums(counts: Mapping[int, int], limit: int) -> int:
    """Bit s is set where some of the groups sum to s; ``counts`` maps size to number."""
    window = (1 << (limit + 1)) - 1
    sums = 1
    for size, count in counts.items():
        chunk = 1
        while count > 0:  # chunks of 1, 2, 4, ... groups reach every number of groups
            some = min(chunk, count)
            if some * size <= limit:
                sums |= (sums << (some * size)) & window
            count -= some
            chunk *= 2
    return sums


def _pairwise_sums(a: int, b: int, limit: int) -> int:
    """Bit s is set where s = i + j with bit i set in ``a`` and bit j set in ``b``."""
    window = (1 << (limit + 1)) - 1
    if a.bit_count() < b.bit_count():
        a, b = b, a
    sums = 0
    while b:
        lowest = b & -b
        sums |= a << (lowest.bit_length() - 1)
        b ^= lowest
    return sums & window


# --- reasons a person reads ---------------------------------------------------------


def _obvious_obstacle(
    queue: Sequence[GroupSummary],
    batch_size: int,
    needs: Mapping[int, int],
    names: Mapping[int, str],
) -> str | None:
    if not queue:
        return "the queue is empty: waiting for scored groups"
    queued = sum(group.n_seq for group in queue)
    if queued < batch_size:
        return f"{queued} of {batch_size} sequences queued: waiting for scored groups"
    held: Counter[int | None] = Counter()
    for group in queue:
        held[group.env] += group.n_seq
    for env, need in needs.items():
        if held[env] < need:
            return (
                f"each batch holds at least {need} sequences of {_call(env, names)}, "
                f"but {held[env]} are queued"
            )
    return None


def _no_combination(
    keys: Sequence[Key], batch_size: int, needs: Mapping[int, int], names: Mapping[int, str]
) -> str:
    sizes = Counter(size for _, size in keys)
    listed = _listed(f"{count} of size {size}" for size, count in sorted(sizes.items()))
    reason = f"no combination of the queued groups ({listed}) makes exactly {batch_size}"
    if needs and oldest_first([(None, size) for _, size in keys], batch_size) is not None:
        minima = _listed(f"{_call(env, names)} at least {need}" for env, need in needs.items())
        reason += f" sequences with the minimum allocations kept ({minima})"
    else:
        reason += " sequences: choose a batch size that the group sizes divide"
    return reason


def _call(env: int, names: Mapping[int, str]) -> str:
    return f"env {env} ({names[env]})" if env in names else f"env {env}"


def _listed(parts: Iterable[str], most: int = 8) -> str:
    shown = list(parts)
    tail = [f"{len(shown) - most} more"] if len(shown) > most else []
    return ", ".join(shown[:most] + tail)

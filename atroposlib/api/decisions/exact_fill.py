"""Exact fill: the first subset in a given order with exactly the size of a batch. Pure.

The algorithm walks the candidates in their order. It takes each candidate, unless no exact
batch that keeps every minimum contains it together with the groups taken before. So a batch is
found whenever any exists, and the order alone decides the preference.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import ceil, gcd

from atroposlib.api.common.run_record import EnvEntry

_ROUNDING = 1e-9  # 0.1 * 30 is 3.0000000000000004, which must stay 3
# Each env with a minimum is a class; all other groups share the class None.
Key = tuple[int | None, int]  # (class, size): groups with the same key are interchangeable


def first_exact(
    keys: Sequence[Key], target: int, needs: Mapping[int, int] | None = None
) -> list[int] | None:
    """Indices of the lexicographically first subset that sums to ``target``, or None.

    ``keys`` are (env, size) in order of preference; ``needs`` is the least sum of the sizes
    by env.

    Two facts bound the cost. Feasibility of a prefix is monotone, so its length is found by
    binary search. Once a key is refused, each later group with that key is refused too,
    since it could have replaced the refused group. So there is a search per key.
    """
    needs = _positive(needs)
    keys = [(env if env in needs else None, size) for env, size in keys]
    unit = gcd(*(size for _, size in keys)) if keys else 1
    if target <= 0 or unit == 0 or target % unit:
        return None
    problem = _Problem(target // unit, {env: -(-need // unit) for env, need in needs.items()})
    scaled = [(env, size // unit) for env, size in keys]
    candidates = _usable(scaled, problem.room)
    if not problem.feasible_after([scaled[i] for i in candidates], 0):
        return None
    chosen: list[int] = []
    refused: set[Key] = set()
    while not problem.solved:
        row = [scaled[i] for i in candidates]
        taken = problem.longest_feasible_prefix(row, hopeful=not chosen)
        chosen += candidates[:taken]
        problem.take(row[:taken])
        refused.update(row[taken : taken + 1])
        candidates = [
            i
            for i in candidates[taken + 1 :]
            if scaled[i] not in refused and problem.has_room_for(scaled[i])
        ]
    return chosen


def is_feasible(
    counts: Mapping[Key, int], target: int, needs: Mapping[int, int] | None = None
) -> bool:
    """Whether these numbers of groups by (env, size) contain an exact choice."""
    unit = gcd(*(size for (_, size), count in counts.items() if size > 0 and count > 0))
    if target <= 0 or unit == 0 or target % unit:
        return False
    needs = {env: -(-need // unit) for env, need in _positive(needs).items()}
    merged: defaultdict[int | None, Counter[int]] = defaultdict(Counter)
    for (env, size), count in counts.items():
        if 0 < size <= target and count > 0:
            merged[env if env in needs else None][size // unit] += min(count, target // size)
    return _reaches(merged, target // unit, needs)


def min_sum(sizes: Iterable[int], need: int, limit: int) -> int | None:
    """The least sum >= ``need`` of any number of these sizes; None if above ``limit``."""
    unit = gcd(*(sizes := list(sizes)))
    if unit == 0:
        return None if need > 0 else 0
    need, limit = -(-need // unit), limit // unit
    counts = {size // unit: limit * unit // size for size in sizes}
    sums = _subset_sums(counts, limit) >> need << need
    return ((sums & -sums).bit_length() - 1) * unit if sums else None


def sizes_in_batches(sizes: Iterable[int], target: int) -> set[int]:
    """Sizes that occur in some batch, made of any number of groups of all ``sizes``."""
    unit = gcd(target, *sizes)
    sums = _subset_sums(
        {size // unit: target // size for size in sizes if 0 < size <= target}, target // unit
    )
    return {size for size in sizes if size <= target and sums >> (target - size) // unit & 1}


def _positive(needs: Mapping[int, int] | None) -> dict[int, int]:
    return {env: need for env, need in (needs or {}).items() if need > 0}


def _usable(keys: Sequence[Key], target: int) -> list[int]:
    """Indices of the first groups of each key, at most as many as fit into the target."""
    seen: Counter[Key] = Counter()
    usable = []
    for i, key in enumerate(keys):
        if key[1] > 0 and seen[key] < target // key[1]:
            seen[key] += 1
            usable.append(i)
    return usable


class _Problem:
    """The remaining size of the batch, and the remainder of each minimum."""

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

    def has_room_for(self, key: Key) -> bool:
        """Whether a group fits together with the minima of the remaining classes."""
        env, size = key
        own = max(0, self.needs.get(env, 0)) if env is not None else 0
        return size <= self.room - self._needed() + own

    def _needed(self) -> int:
        return sum(need for need in self.needs.values() if need > 0)

    def longest_feasible_prefix(self, row: Sequence[Key], hopeful: bool) -> int:
        """Length of the longest prefix that some exact batch contains whole.

        The empty prefix is feasible. ``hopeful`` tries the longest prefix first, which fits
        where all groups just add up; later searches start with short prefixes.
        """
        filled = list(accumulate((size for _, size in row), initial=0))
        high = bisect_right(filled, self.room) - 1
        low, step = 0, 1
        if hopeful and self.feasible_after(row, high):
            return high
        while not hopeful and low < high:
            reach = min(low + step, high)
            if not self.feasible_after(row, reach):
                high = reach - 1
                break
            low, step = reach, 2 * step
        while low < high:
            middle = (low + high + 1) // 2
            if self.feasible_after(row, middle):
                low = middle
            else:
                high = middle - 1
        return low

    def feasible_after(self, row: Sequence[Key], taken: int) -> bool:
        """Whether some exact batch contains the first ``taken`` groups, each group once."""
        rest = _Problem(self.room, dict(self.needs))
        rest.take(row[:taken])
        if rest.room < rest._needed():
            return False
        counts: defaultdict[int | None, Counter[int]] = defaultdict(Counter)
        for (env, size), count in Counter(row[taken:]).items():
            counts[env][size] = count
        return _reaches(counts, rest.room, rest.needs)


def _reaches(
    counts: Mapping[int | None, Mapping[int, int]], room: int, needs: Mapping[int, int]
) -> bool:
    """Whether groups sum to ``room`` with each need kept; ``counts``: number by class, size."""
    if room < 0:
        return False
    free: Counter[int] = Counter(counts.get(None, {}))
    reach = 1
    for env, need in needs.items():
        if need <= 0:  # already met: its groups fill like groups without a minimum
            free.update(counts.get(env, {}))
            continue
        sums = _subset_sums(counts.get(env, {}), room) >> need << need
        reach = _pairwise_sums(reach, sums, room)
        if not reach:
            return False
    return bool(_subset_sums(free, room, reach) >> room & 1)


def _subset_sums(counts: Mapping[int, int], limit: int, sums: int = 1) -> int:
    """Bit s is set where a set bit of ``sums`` and some of the groups add up to s."""
    window = (1 << (limit + 1)) - 1
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


def minimum_sequences(minima: Mapping[int, float], batch_size: int) -> dict[int, int]:
    """Sequences that each batch holds at least, by env.

    A share is rounded up, since rounding down turns a small minimum into 0. If the rounded
    shares exceed the batch, all shares shrink in proportion, rounded down.

    Example: {0: 0.25, 1: 0.1} of 16 -> {0: 4, 1: 2}; {0: 1.0, 1: 1.0} of 9 -> {0: 4, 1: 4}.
    """
    needs = {
        env: ceil(batch_size * share - _ROUNDING) for env, share in minima.items() if share > 0
    }
    total = sum(needs.values())
    if total > batch_size:
        needs = {env: need * batch_size // total for env, need in needs.items()}
    return {env: need for env, need in needs.items() if need > 0}


def minima_of(envs: Sequence[EnvEntry]) -> dict[int, float]:
    """The minimum shares by env id, of the environments that set a minimum."""
    return {
        env.env_id: env.min_batch_allocation
        for env in envs
        if env.min_batch_allocation is not None
    }

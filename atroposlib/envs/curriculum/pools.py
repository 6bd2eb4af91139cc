"""Difficulty pools: tasks by their success at recent versions, and a weight for each pool.

    unseen --observe--> too_easy | useful | too_hard      success, an exponential mean over versions
       ^------- the estimate is old -----------------------------'

A draw chooses a pool by its weight times its number of tasks, then the task of the pool that was
drawn the longest ago. A share of draws ignores the pools.

An estimate is old when its weight has decayed and its task has been without a group for as many
versions as the task was in its pool before. A task that stays impossible is thus tried again at
doubling distances: the tries grow with the logarithm of the versions, and a task that has become
possible is found at the latest after twice the versions.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atroposlib.envs.curriculum.interface import ObservedGroup, Task, TaskSampler
from atroposlib.errors import ConfigError
from atroposlib.settings.sentences import did_you_mean

UNSEEN, EASY, USEFUL, HARD = "unseen", "too_easy", "useful", "too_hard"
# Relative weights of a task: a useful task is drawn fifty times as often as an impossible task.
WEIGHTS = {UNSEEN: 1.0, EASY: 0.02, USEFUL: 1.0, HARD: 0.02}
OLD = 0.1  # an estimate of less weight, in groups, counts as none


@dataclass
class Estimate:
    """Success of a task: a mean of its groups, each of half the weight ``half_life`` versions on."""

    weight: float = 0.0  # groups, decayed
    total: float = 0.0  # their success
    version: int = 0  # both are decayed to this version
    drawn: int = -1  # number of its last draw
    since: int = 0  # version since which its groups agree on its pool

    def weight_at(self, version: int, half_life: float) -> float:
        """The weight at ``version``; a version of a new run that is lower decays nothing."""
        return float(self.weight * 0.5 ** (max(0, version - self.version) / half_life))

    def last_version(self, half_life: float) -> float:
        """The last version at which the estimate is not old."""
        decay = half_life * math.log2(self.weight / OLD)  # versions until the weight is OLD
        return self.version + max(decay, self.version - self.since)

    def add(self, success: float, version: int, half_life: float) -> None:
        """Count a group of ``version``."""
        now = self.weight_at(version, half_life)
        self.total = self.total * (now / self.weight if self.weight else 0.0) + success
        self.weight, self.version = now + 1.0, version


class DifficultyPools(TaskSampler):
    """Draws by pools of difficulty.

    Args:
        low: tasks of less success are too hard.
        high: tasks of more success are too easy.
        half_life: policy versions after which a group counts half.
        weights: of a task of each pool: unseen, too_easy, useful, too_hard.
        explore: share of draws among all tasks alike.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        seed: int = 0,
        low: float = 0.02,
        high: float = 0.98,
        half_life: float = 10.0,
        weights: Mapping[str, float] | None = None,
        explore: float = 0.1,
    ) -> None:
        super().__init__(tasks, seed=seed)
        self._weights = {**WEIGHTS, **_known_weights(weights or {})}
        if not (0 <= low <= high <= 1 and 0 <= explore <= 1 and half_life > 0):
            raise ConfigError(
                "curriculum, pools: low, high and explore are 0 to 1, low at most high, "
                "half_life above 0"
            )
        self._low, self._high, self._half_life, self._explore = low, high, half_life, explore
        order = list(range(len(tasks)))
        self.random.shuffle(order)
        self._rank = {number: rank for rank, number in enumerate(order)}
        self._rest()

    def _rest(self) -> None:
        """Begin with all tasks unseen."""
        self._estimates: dict[int, Estimate] = {}
        self._pool_of = dict.fromkeys(self._rank, UNSEEN)
        self._sizes = Counter({UNSEEN: len(self._rank)})
        self._heaps: dict[str, list[tuple[int, int, int]]] = {pool: [] for pool in WEIGHTS}
        self._version, self._drawn_from = 0, Counter[str]()
        self._heaps[UNSEEN] = sorted((-1, rank, n) for n, rank in self._rank.items())
        self._ends: list[tuple[float, int]] = []  # heap: last version of an estimate, number

    # --- drawing ------------------------------------------------------------------------

    def next(self) -> Task | None:
        self._expire()
        if not self._rank:
            return None
        explores = self.random.random() < self._explore
        shares = [1.0 if explores else self._weights[pool] for pool in WEIGHTS]
        sizes = [share * self._sizes[pool] for share, pool in zip(shares, WEIGHTS)]
        if not any(sizes):  # every pool that has tasks has weight 0
            sizes = [float(self._sizes[pool]) for pool in WEIGHTS]
        [pool] = self.random.choices([*WEIGHTS], weights=sizes)
        number = self._oldest(pool)
        self._drawn_from["explored" if explores else pool] += 1
        self._estimates.setdefault(number, Estimate()).drawn = self.draws
        self._push(number)
        return self.tasks[number]

    def _oldest(self, pool: str) -> int:
        """The task of a pool that was drawn the longest ago; entries of earlier draws are left out."""
        heap = self._heaps[pool]
        while True:
            drawn, _, number = heap[0]
            if self._pool_of[number] == pool and drawn == self._last_draw(number):
                return number
            heapq.heappop(heap)

    def _last_draw(self, number: int) -> int:
        return self._estimates[number].drawn if number in self._estimates else -1

    def _push(self, number: int) -> None:
        entry = (self._last_draw(number), self._rank[number], number)
        heapq.heappush(self._heaps[self._pool_of[number]], entry)

    def _expire(self) -> None:
        """Make tasks unseen whose estimates are old."""
        while self._ends and self._ends[0][0] < self._version:
            _, number = heapq.heappop(self._ends)
            if self._is_old(self._estimates[number]):  # else an entry of an earlier group
                self._move(number, UNSEEN)

    # --- estimates ----------------------------------------------------------------------

    def observe(self, group: ObservedGroup) -> None:
        number = group.task.number
        if number is None or group.success is None:
            return
        self._version = group.version
        estimate = self._estimates.setdefault(number, Estimate())
        before = self._pool_of_estimate(estimate)
        estimate.add(group.success, group.version, self._half_life)
        pool = self._pool_of_estimate(estimate)
        if pool != before:
            estimate.since = group.version
        self._move(number, pool)
        self._push_end(number)

    def _move(self, number: int, pool: str) -> None:
        before = self._pool_of[number]
        if pool != before:
            self._sizes[before] -= 1
            self._sizes[pool] += 1
            self._pool_of[number] = pool
            self._push(number)

    def _push_end(self, number: int) -> None:
        end = self._estimates[number].last_version(self._half_life)
        heapq.heappush(self._ends, (end, number))

    def _is_old(self, estimate: Estimate) -> bool:
        return estimate.last_version(self._half_life) < self._version

    def _pool_of_estimate(self, estimate: Estimate) -> str:
        """The pool by the success; that of an estimate without groups is ``unseen``."""
        if not estimate.weight:
            return UNSEEN
        success = estimate.total / estimate.weight
        if success < self._low:
            return HARD
        return EASY if success > self._high else USEFUL

    def pool(self, number: int) -> str:
        """The pool of a task."""
        return self._pool_of[number]

    def metrics(self) -> dict[str, float]:
        tasks, draws = max(1, len(self._rank)), max(1, sum(self._drawn_from.values()))
        shares = {f"pool_{pool}": self._sizes[pool] / tasks for pool in WEIGHTS}
        return shares | {
            f"drawn_{pool}": self._drawn_from[pool] / draws for pool in (*WEIGHTS, "explored")
        }

    # --- restarts -----------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "draws": self.draws,
            "version": self._version,
            "drawn_from": dict(self._drawn_from),
            # The pool too: an old estimate leaves it with the next draw.
            "tasks": [
                [n, e.weight, e.total, e.version, e.drawn, self._pool_of[n], e.since]
                for n, e in self._estimates.items()
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._rest()
        self.draws, self._version = state["draws"], state["version"]
        self._drawn_from = Counter(state["drawn_from"])
        for number, weight, total, version, drawn, pool, *since in state["tasks"]:
            if number not in self._rank:
                continue  # the data set was longer
            # An earlier form of the state has no ``since``.
            agrees_since = since[0] if since else version
            self._estimates[number] = Estimate(weight, total, version, drawn, agrees_since)
            self._sizes[self._pool_of[number]] -= 1
            self._sizes[pool] += 1
            self._pool_of[number] = pool
            self._push(number)
            if pool != UNSEEN:
                self._push_end(number)


def _known_weights(weights: Mapping[str, float]) -> dict[str, float]:
    for name, weight in weights.items():
        if name not in WEIGHTS:
            hint = did_you_mean(name, [*WEIGHTS])
            raise ConfigError(f"curriculum, pools: no pool {name!r}{hint}")
        if not weight >= 0:
            raise ConfigError(f"curriculum, pools: weight {name} is {weight!r}, below 0")
    return dict(weights)

"""A measured figure, its target, and whether it meets the target. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec


class Verdict(str, Enum):
    MET = "met"
    MISSED = "missed"
    NONE = ""  # no target was set


class Better(str, Enum):
    LESS = "less"
    MORE = "more"


class Target(msgspec.Struct, frozen=True, omit_defaults=True):
    """A bound on the ratio to the naive server, or with ``on_value`` on our own figure."""

    at_least: float | None = None
    at_most: float | None = None
    on_value: bool = False

    def verdict(self, value: float | None) -> Verdict:
        """MISSED for a value that was not measured: a missing value never meets a target."""
        if value is None:
            return Verdict.MISSED
        if self.at_least is not None and value < self.at_least:
            return Verdict.MISSED
        if self.at_most is not None and value > self.at_most:
            return Verdict.MISSED
        return Verdict.MET


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Line of a table. Repeats are kept; the least disturbed repeat is shown."""

    what: str
    unit: str
    ours: tuple[float, ...]
    naive: tuple[float, ...] = ()
    limit: tuple[float, ...] = ()  # the machine's own: a bare HTTP server, same bytes
    better: Better = Better.LESS
    target: Target | None = None

    def best(self, repeats: Sequence[float]) -> float | None:
        """The repeat that load of the machine disturbed least. None: never measured."""
        if not repeats:
            return None
        return min(repeats) if self.better is Better.LESS else max(repeats)

    @property
    def ratio(self) -> float | None:
        """How many times better than the naive server: above 1 is better."""
        return self._times_better(self.best(self.ours), self.best(self.naive))

    @property
    def spread(self) -> tuple[float, float] | None:
        """Smallest and largest ratio of the pairs that were measured in succession."""
        pairs = [self._times_better(a, b) for a, b in zip(self.ours, self.naive)]
        known = [pair for pair in pairs if pair is not None]
        return (min(known), max(known)) if known else None

    @property
    def verdict(self) -> Verdict:
        if self.target is None:
            return Verdict.NONE
        return self.target.verdict(
            self.best(self.ours) if self.target.on_value else self.ratio
        )

    def _times_better(self, ours: float | None, naive: float | None) -> float | None:
        if ours is None or naive is None:
            return None
        up, down = (naive, ours) if self.better is Better.LESS else (ours, naive)
        return up / down if down > 0 else None


class Section(msgspec.Struct, frozen=True):
    """The figures of a scenario, and how they were taken."""

    title: str
    method: str
    figures: tuple[Figure, ...]


class Results(msgspec.Struct, frozen=True):
    """Results of an invocation."""

    machine: str
    taken: str  # ISO date
    plan: str
    load: tuple[float, float]  # average over a minute, before and after
    sections: tuple[Section, ...]


def times(least: float) -> Target:
    """Lower bound on the ratio to the naive server."""
    return Target(at_least=least)


def at_most(bound: float) -> Target:
    """Upper bound on our own figure, independent of the naive server."""
    return Target(at_most=bound, on_value=True)


def growth(cost: Sequence[float], noise: float) -> float:
    """The last cost over the first, with ``noise`` added to both.

    Example: [1.0, 1.1, 1.3] with noise 0.5 -> 1.2; costs of nothing at all -> 1.0.
    """
    return (cost[-1] + noise) / (cost[0] + noise)

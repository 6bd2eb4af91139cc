"""Counts of observed groups: in all, and since metrics were last emitted."""

from __future__ import annotations

from collections.abc import Mapping

from atroposlib.envs.curriculum.interface import ObservedGroup

NAMES = ("groups", "useful_groups", "tokens")


class GroupCounts:
    """Groups with scores, useful groups among these, and their tokens."""

    def __init__(self) -> None:
        self.totals = dict.fromkeys(NAMES, 0)
        self._emitted = dict.fromkeys(NAMES, 0)

    def add(self, group: ObservedGroup) -> None:
        """Count a group; a failed rollout is none."""
        if group.scores:
            self.totals["groups"] += 1
            self.totals["useful_groups"] += group.is_useful
            self.totals["tokens"] += group.tokens

    def metrics(self) -> dict[str, float]:
        """The totals, and the ratios since the last call."""
        new = {name: self.totals[name] - self._emitted[name] for name in NAMES}
        self._emitted = dict(self.totals)
        numbers: dict[str, float] = dict(self.totals)
        if new["groups"]:
            numbers["useful_share"] = new["useful_groups"] / new["groups"]
        if new["useful_groups"]:
            numbers["tokens_per_useful_group"] = new["tokens"] / new["useful_groups"]
        return numbers

    def restore(self, totals: Mapping[str, int]) -> None:
        """Continue from the totals of an earlier life."""
        self.totals = {name: totals.get(name, 0) for name in NAMES}
        self._emitted = dict(self.totals)

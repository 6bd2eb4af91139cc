"""Counts of observed groups."""

from __future__ import annotations

from atroposlib.envs.curriculum.group_counts import GroupCounts
from tests.envs.curriculum.conftest import group, rows


def test_ratios_are_those_since_the_last_emission_and_totals_go_on_after_a_restart():
    [task] = rows(1)
    counts = GroupCounts()
    for scores in ((1.0, 0.0), (0.0, 0.0), ()):
        counts.add(group(task, *scores, tokens=10))
    totals = {"groups": 2, "useful_groups": 1, "tokens": 20}
    ratios = {"useful_share": 0.5, "tokens_per_useful_group": 20}
    assert counts.metrics() == totals | ratios
    assert counts.metrics() == totals
    again = GroupCounts()
    again.restore(totals)
    assert again.metrics() == totals

"""Staleness of groups, with values computed by hand."""

from __future__ import annotations

import pytest

from atroposlib.api.common.records import GroupSummary
from atroposlib.api.decisions.staleness import StalenessRule


def of_version(version, arrived=None):
    return GroupSummary(1, 0, 4, version=version, arrived_version=arrived)


@pytest.mark.parametrize(
    ("version", "arrived", "dropped"),
    [
        (7, 9, True),
        (8, 9, False),  # exactly at the bound
        (11, 9, False),  # newer than the policy version of the run
        (None, 7, True),  # names no version, and was on time only if it was stale
        (None, 8, False),
        (None, None, False),
    ],
)
def test_only_groups_certainly_beyond_the_staleness_bound_are_dropped(
    version, arrived, dropped
):
    rule = StalenessRule("drop", max_staleness=2, policy_version=10)
    assert rule.drops(of_version(version, arrived)) is dropped
    assert rule.mask_below is None


@pytest.mark.parametrize(("policy", "bound"), [("keep", 2), ("mask", 2), ("drop", None)])
def test_other_policies_and_a_missing_bound_drop_no_groups(policy, bound):
    rule = StalenessRule(policy, bound, policy_version=10)
    assert rule.split([of_version(0)]) == ([of_version(0)], ())


def test_masking_begins_below_the_oldest_version_within_the_bound():
    assert StalenessRule("mask", 2, 10).mask_below == 8
    assert StalenessRule("mask", 0, 10).mask_below == 10
    assert StalenessRule("mask", None, 10).mask_below is None
    assert StalenessRule("keep", 2, 10).mask_below is None


def test_splitting_by_staleness_keeps_the_order():
    rule = StalenessRule("drop", 0, 1)
    queue = [GroupSummary(gid, 0, 4, version=gid % 2) for gid in range(1, 6)]
    fresh, dropped = rule.split(queue)
    assert [group.gid for group in fresh] == [1, 3, 5] and dropped == (2, 4)


def test_a_group_without_versions_is_as_new_as_its_arrival():
    assert of_version(None, 4).oldest_version == 4
    assert of_version(3, 4).oldest_version == 3

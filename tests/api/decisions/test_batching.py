"""Batches are exact, whole, within minima, in the order of the mix; reasons are readable."""

from __future__ import annotations

from hypothesis import given, strategies as st

from atroposlib.api.common.records import GroupSummary
from atroposlib.api.decisions import fair_share
from atroposlib.api.decisions.batching import choose, complete_buffer
from atroposlib.api.decisions.staleness import StalenessRule
from tests.api.decisions.summaries import SOME, groups, needs, pick, queue_of, weights

# --- what is chosen -----------------------------------------------------------------


def test_equal_groups_are_batched_in_arrival_order():
    assert pick(queue_of(*[(0, 4)] * 5), 8).gids == (1, 2)


def test_a_batch_mixes_group_sizes_that_do_not_divide_each_other():
    # 8 and 12 of one environment: the original never formed a batch.
    assert pick(queue_of((0, 8), (0, 12), (0, 12), (0, 8)), 20).gids == (1, 2)


def test_the_oldest_group_is_skipped_if_no_exact_batch_contains_it():
    assert pick(queue_of((0, 3), (0, 4), (0, 4)), 8).gids == (2, 3)


def test_groups_without_env_are_batched_although_an_env_has_a_minimum():
    assert pick(queue_of((None, 4), (None, 4), (0, 4)), 8, {0: 4}).gids == (1, 3)


def test_the_env_of_higher_weight_is_chosen_first_and_the_batch_is_listed_oldest_first():
    queue = queue_of((0, 4), (0, 4), (1, 4), (1, 4))
    assert pick(queue, 8, weights={0: 1.0, 1: 4.0}).gids == (3, 4)
    assert pick(queue, 12, weights={0: 1.0, 1: 4.0}).gids == (1, 3, 4)


def test_a_minimum_allocation_takes_precedence_over_the_mixing_weights():
    queue = queue_of((0, 4), (0, 4), (1, 4), (1, 4))
    assert pick(queue, 8, {0: 1}, weights={0: 0.01, 1: 100.0}).gids == (1, 3)


def test_a_full_store_waives_a_minimum_only_if_no_batch_keeps_it():
    starved, kept = queue_of((0, 4), (0, 4)), queue_of((0, 4), (0, 4), (1, 4))
    assert pick(starved, 8, {1: 4}).gids == ()
    assert pick(starved, 8, {1: 4}, full=True).gids == (1, 2)
    assert pick(kept, 8, {1: 4}, full=True).gids == (1, 3)
    assert pick(kept, 8, {1: 4, 2: 4}, full=True).gids == (1, 3)  # what is queued of them


def test_the_groups_of_a_batch_determine_the_env_served_next():
    queue = queue_of((0, 4, 30), (0, 4, 30), (1, 4, 10), (1, 4, 10), (1, 4, 10), (1, 4, 10))
    first = pick(queue, 8)
    assert first.gids == (3, 4)  # 10 and 20 tokens: both paid for before the 30
    left = [group for group in queue if group.gid not in first.gids]
    second = choose(left, first.fair_share, batch_size=8)
    assert second.gids == (1, 5)


def test_stale_groups_are_dropped_also_when_no_groups_remain():
    queue = [GroupSummary(1, 0, 4, version=1), GroupSummary(2, 0, 4, version=5)]
    selection = pick(queue, 8, policy=StalenessRule("drop", 2, 5))
    assert (selection.gids, selection.dropped) == ((), (1,))
    assert selection.blocked_reason == "4 of 8 sequences queued: waiting for scored groups"


def test_a_batch_has_the_oldest_policy_version_whose_tokens_are_trained():
    queue = [GroupSummary(1, 0, 4, version=1), GroupSummary(2, 0, 4, version=5)]
    selection = pick(queue, 8, policy=StalenessRule("mask", 2, 5))
    assert (selection.gids, selection.dropped, selection.min_version) == ((1, 2), (), 3)


@given(queue=groups, target=st.integers(1, 24), needs=needs, weights=weights)
@SOME
def test_every_batch_is_exact_and_keeps_every_minimum(queue, target, needs, weights):
    selection = pick(queue, target, needs, weights=weights)
    chosen = [group for group in queue if group.gid in selection.gids]
    if selection.gids:
        assert list(selection.gids) == sorted(set(selection.gids))
        assert sum(group.n_seq for group in chosen) == target
        for env, need in needs.items():
            assert sum(group.n_seq for group in chosen if group.env == env) >= need
        trained = sum(entry.trained for entry in fair_share.decode(selection.fair_share).envs)
        assert trained == sum(group.n_tokens for group in chosen)
    else:
        assert selection.blocked_reason and selection.fair_share is None


def test_a_buffer_returns_its_earliest_groups_that_add_up_to_the_group_size():
    assert complete_buffer([(7, 4), (8, 3), (9, 2), (11, 2)], 5) == [8, 9]
    assert complete_buffer([(7, 8)], 5) == []
    assert complete_buffer([], 5) == []


def test_a_batch_of_twenty_thousand_groups_of_odd_sizes_is_found_in_time():
    queue = queue_of(*[(i % 7, (6, 10, 15)[i % 3], i % 100) for i in range(20_000)])
    chosen = set(pick(queue, 1000, {0: 100, 3: 200}).gids)
    rows = [group for group in queue if group.gid in chosen]
    assert sum(group.n_seq for group in rows) == 1000
    assert sum(group.n_seq for group in rows if group.env == 3) >= 200


# --- what a person reads ------------------------------------------------------------

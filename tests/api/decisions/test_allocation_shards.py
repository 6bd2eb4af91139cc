"""One batch over several ranks: nothing twice, nothing left out, loads alike."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from atroposlib.api.common.records import BatchMember
from atroposlib.api.decisions.allocation import shard
from atroposlib.errors import ConfigError


def members_of(*tokens):
    return [BatchMember(gid, None, 4, count) for gid, count in enumerate(tokens, start=1)]


def shares(members, world_size):
    return [[m.gid for m in shard(members, world_size, r)] for r in range(world_size)]


def test_the_longest_group_is_assigned_first_to_the_least_loaded_rank():
    # 9 to rank 0, 7 to 1, 6 to 1, 5 to 0, 4 to 1 (13 < 14): 14 and 17
    assert shares(members_of(5, 9, 4, 7, 6), 2) == [[1, 2], [3, 4, 5]]


def test_one_rank_gets_the_whole_batch_in_its_order():
    assert shares(members_of(3, 1, 2), 1) == [[1, 2, 3]]


def test_more_ranks_than_groups_leave_some_shards_empty():
    assert shares(members_of(3, 1), 3) == [[1], [2], []]


def test_groups_without_trained_tokens_are_spread_over_the_ranks():
    assert shares(members_of(0, 0, 0, 0), 2) == [[1, 3], [2, 4]]


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_the_world_size_is_rejected(rank):
    with pytest.raises(ConfigError, match=r"0 \.\. 1"):
        shard(members_of(1), 2, rank)


@given(tokens=st.lists(st.integers(0, 10_000), max_size=60), world_size=st.integers(1, 16))
def test_every_group_is_in_exactly_one_shard_and_no_rank_is_overloaded(tokens, world_size):
    members = members_of(*tokens)
    split = [shard(members, world_size, rank) for rank in range(world_size)]
    assert sorted(m.gid for part in split for m in part) == [m.gid for m in members]
    assert all(list(part) == sorted(part, key=lambda m: m.gid) for part in split)
    loads = [sum(max(m.n_tokens, m.n_seq) for m in part) for part in split]
    costs = [max(m.n_tokens, m.n_seq) for m in members]
    assert max(loads) <= sum(loads) / world_size + max(costs, default=0)
    if len(members) >= world_size:
        assert all(split)

"""The three queue functions of the original keep their contracts."""

from __future__ import annotations

import pytest

from atroposlib.api.utils import (
    find_groups_summing_to_target,
    grab_batch_with_minimum_allocations,
    grab_exact_from_heterogeneous_queue,
)


def groups(*sizes, env_id=None):
    return [{"tokens": [[1]] * size, "env_id": env_id} for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "target", "chosen"),
    [
        ((2, 2, 4), 4, [0, 1]),
        ((3, 1, 4), 5, [1, 2]),
        ((1,) * 16, 8, list(range(8))),
        ((16, 8, 8), 32, [0, 1, 2]),
        ((2, 4), 3, []),
        ((4, 3, 2, 2), 5, [1, 2]),
        ((), 4, []),
    ],
)
def test_a_buffer_returns_its_earliest_groups_that_add_up_to_the_group_size(
    sizes, target, chosen
):
    assert find_groups_summing_to_target(groups(*sizes), target) == chosen


def test_an_exact_batch_leaves_the_remaining_groups_in_order():
    queue = groups(4, 2, 2, 4)
    batch, rest = grab_exact_from_heterogeneous_queue(queue, 8)
    assert [len(group["tokens"]) for group in batch] == [4, 2, 2]
    assert rest == queue[3:]


def test_too_few_sequences_leave_the_queue_unchanged():
    queue = groups(4)
    assert grab_exact_from_heterogeneous_queue(queue, 8) == (None, queue)


def test_a_minimum_is_met_and_groups_without_env_are_still_served():
    queue = groups(4, 4, env_id=None) + groups(4, env_id=1)
    envs = [
        {"connected": True, "min_batch_allocation": None},
        {"connected": True, "min_batch_allocation": 0.1},
    ]
    batch, rest = grab_batch_with_minimum_allocations(queue, 8, envs)
    assert [group["env_id"] for group in batch] == [None, 1]
    assert rest == queue[1:2]


def test_the_minimum_of_a_disconnected_env_is_ignored():
    envs = [{"registered_id": 5, "connected": False, "min_batch_allocation": 0.5}]
    batch, rest = grab_batch_with_minimum_allocations(groups(4, 4, env_id=0), 8, envs)
    assert len(batch) == 2 and rest == []

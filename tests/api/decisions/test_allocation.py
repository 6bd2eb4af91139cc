"""Minima and pacing figures, by hand."""

from __future__ import annotations

import pytest

from atroposlib.api.common.records import GroupCount, GroupState
from atroposlib.api.common.run_record import EnvEntry
from atroposlib.api.decisions.allocation import env_status, env_weight, supply_of
from atroposlib.api.decisions.exact_fill import minimum_sequences


def env(env_id, weight=1.0, minimum=None, group_size=4, length=100):
    return EnvEntry(
        env_id=env_id,
        desired_name="e",
        wandb_name=f"e_{env_id}",
        max_token_length=length,
        weight=weight,
        group_size=group_size,
        min_batch_allocation=minimum,
    )


def held(env_id, n_seq, groups, state=GroupState.PENDING):
    return GroupCount(state, env_id, n_seq, groups)


@pytest.mark.parametrize(
    ("minima", "batch_size", "needs"),
    [
        ({0: 0.25, 1: 0.1}, 16, {0: 4, 1: 2}),
        ({0: 0.1}, 30, {0: 3}),  # 0.1 * 30 is a little over 3
        ({0: 0.01}, 8, {0: 1}),  # a small minimum is not none
        ({0: 0.5, 1: 0.5}, 9, {0: 4, 1: 4}),
        ({0: 1.0, 1: 1.0, 2: 1.0}, 8, {0: 2, 1: 2, 2: 2}),
        ({0: 0.0}, 8, {}),
        ({}, 8, {}),
    ],
)
def test_minimum_allocations_are_converted_to_sequences(minima, batch_size, needs):
    assert minimum_sequences(minima, batch_size) == needs


def test_the_share_of_an_env_is_its_context_length_times_its_weight():
    envs = [env(0, weight=1.0), env(1, weight=3.0)]
    assert [env_weight(e, supply_of(envs, [], 8)) for e in envs] == [0.25, 0.75]


def test_weights_that_sum_to_zero_give_equal_shares():
    envs = [env(0, weight=0.0), env(1, weight=-1.0)]
    assert [env_weight(e, supply_of(envs, [], 8)) for e in envs] == [0.5, 0.5]


def test_an_env_of_weight_zero_keeps_a_share_of_one_percent():
    asking = env(0, weight=-1.0)
    assert env_weight(asking, supply_of([asking, env(1)], [], 8)) == 0.01


def test_queue_sizes_are_in_groups_of_the_requesting_env():
    group_counts = [held(0, 4, 3), held(1, 8, 2), held(1, 2, 1), held(None, 4, 1)]
    status = env_status(
        env(0), supply_of([env(0), env(1, minimum=0.25)], group_counts, 32), 5, 7
    )
    # own 12; env 1: 18 in packs of 8 = 24, less 8 reserved = 16; no env: 4 -> 8
    assert status.queue_size == (12 + 16 + 8) // 4
    assert status.self_queue_size == 3
    assert status.max_group_size == 8
    assert status.unallocated_fraction == 0.75
    assert (status.current_step, status.policy_version) == (5, 7)


def test_leased_and_buffered_groups_count_so_env_and_trainer_take_turns():
    group_counts = [held(0, 4, 1, GroupState.LEASED), held(0, 2, 1, GroupState.BUFFERED)]
    assert env_status(env(0), supply_of([env(0)], group_counts, 4), 0, 0).queue_size == 1


def test_groups_of_other_envs_count_also_when_all_groups_have_one_row():
    assert (
        env_status(env(0, group_size=1), supply_of([], [held(1, 1, 5)], 8), 0, 0).queue_size
        == 5
    )


def test_a_group_size_below_that_of_the_queued_groups_is_raised():
    assert (
        env_status(env(0, group_size=2), supply_of([], [held(0, 8, 2)], 8), 0, 0).queue_size
        == 2
    )

"""Tables of numbers for the decisions that pace an environment."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from atroposlib.envs.rollout.pacing import (
    Queue,
    ceil,
    groups_of_batches,
    groups_short_of_minimum,
    is_due,
    rollouts_wanted,
    should_stop,
    weights_have_settled,
    worker_cap,
)
from atroposlib.envs.settings.config import BaseEnvConfig, EvalHandlingEnum
from atroposlib.wire import EnvStatus


def settings(group, batch, ahead=3, **more):
    return BaseEnvConfig(
        group_size=group, batch_size=batch, max_batches_offpolicy=ahead, **more
    )


def status(step, queued, **more):
    values = {"self_queue_size": queued, "max_group_size": 8, **more}
    return EnvStatus(
        current_step=step,
        queue_size=queued,
        unallocated_fraction=1.0,
        env_weight=1.0,
        **values,
    )


@pytest.mark.parametrize(
    ("group", "batch", "ahead", "queued", "workers", "wanted"),
    [
        (8, 64, 1, 0, 100, 8),  # one batch is eight groups
        (8, 64, 1, 3, 100, 5),
        (8, 64, 1, 8, 100, 0),  # full: pause
        (8, 64, 1, 9, 100, 0),
        (8, 64, 2, 8, 100, 8),  # one batch is trained on, the next is made
        (8, 64, 3, 0, 10, 10),  # never more than the workers there are
        (8, 12, 1, 1, 100, 1),  # 12 needs two groups of 8; rounding down would stall
        (8, 64, 0, 500, 16, 16),  # 0 and below: no bound
        (8, 64, -1, 500, 16, 16),
        (8, -1, 3, 0, 16, 0),  # no trainer yet
    ],
)
def test_rollouts_fill_the_room_that_is_left(group, batch, ahead, queued, workers, wanted):
    assert rollouts_wanted(settings(group, batch, ahead), Queue(queued), workers) == wanted


@given(
    group=st.integers(1, 64),
    batch=st.integers(1, 1024),
    ahead=st.integers(1, 5),
    queued=st.integers(0, 2000),
    workers=st.integers(0, 64),
)
def test_wanted_rollouts_exceed_the_bound_by_less_than_a_group(
    group, batch, ahead, queued, workers
):
    wanted = rollouts_wanted(settings(group, batch, ahead), Queue(queued), workers)
    assert 0 <= wanted <= workers
    if wanted:
        assert (queued + wanted - 1) * group < ahead * batch


@given(
    group=st.integers(1, 16),
    groups_per_batch=st.integers(1, 16),
    ahead=st.integers(1, 4),
    workers=st.integers(1, 16),
    events=st.lists(st.sampled_from(["turn", "finish", "fail", "train"]), max_size=60),
)
def test_no_order_of_events_begins_work_over_capacity(
    group, groups_per_batch, ahead, workers, events
):
    batch = group * groups_per_batch
    config = settings(group, batch, ahead)
    queued = busy = 0
    for event in events:
        if event == "turn":
            wanted = rollouts_wanted(config, Queue(queued), workers)
            busy += max(0, wanted - busy)
        elif event == "finish" and busy:
            busy, queued = busy - 1, queued + 1
        elif event == "fail" and busy:
            busy -= 1
        elif event == "train" and queued >= groups_per_batch:
            queued -= groups_per_batch
        assert busy <= workers
        assert queued + busy <= ahead * groups_per_batch


@given(
    group=st.integers(1, 8),
    packs=st.integers(1, 8),
    batch=st.integers(1, 512),
    ahead=st.integers(1, 4),
    own=st.integers(0, 200),
    percent=st.integers(1, 100),
)
def test_a_minimum_is_met_exactly_as_the_contract_defines(
    group, packs, batch, ahead, own, percent
):
    largest, share = group * packs, Fraction(percent, 100)
    config = settings(group, batch, ahead, min_batch_allocation=percent / 100)
    short = groups_short_of_minimum(
        config, Queue(0, self_queue_size=own, max_group_size=largest)
    )
    owed = math.ceil(share * batch * ahead / largest) * (largest // group)
    assert short == max(0, owed - own)


@given(
    steps=st.lists(st.integers(0, 50), min_size=1, max_size=30),
    interval=st.integers(1, 20),
)
def test_every_multiple_that_is_passed_is_due_once(steps, interval):
    step = fired = 0
    periods = set()
    for jump in steps:
        if is_due(step, step + jump, interval):
            fired += 1
            periods.add((step + jump) // interval)
        step += jump
    assert len(periods) == fired  # never twice within one period
    assert bool(fired) is (step >= interval)  # and never missed altogether


@given(numerator=st.integers(0, 10**6), denominator=st.integers(1, 1000))
def test_rounding_up_is_not_fooled_by_binary_fractions(numerator, denominator):
    assert ceil(numerator / denominator) == math.ceil(Fraction(numerator, denominator))
    assert ceil(10 * (0.1 + 0.2)) == 3


def test_environments_share_a_batch_by_what_others_reserved():
    half = Queue(0, unallocated_fraction=0.5)
    assert rollouts_wanted(settings(8, 64, ahead=1), half, 100) == 4


def test_a_minimum_share_is_owed_even_when_others_filled_the_queue():
    config = settings(8, 64, ahead=1, min_batch_allocation=0.5)
    full = Queue(queue_size=8, self_queue_size=1, unallocated_fraction=0.5, max_group_size=8)
    assert groups_short_of_minimum(config, full) == 3  # 32 of 64 sequences are 4 groups
    assert rollouts_wanted(config, full, 100) == 3
    paid = Queue(queue_size=8, self_queue_size=4, unallocated_fraction=0.5, max_group_size=8)
    assert rollouts_wanted(config, paid, 100) == 0


def test_a_minimum_is_owed_in_units_of_the_largest_group():
    config = settings(4, 32, ahead=1, min_batch_allocation=0.25)
    # 8 -> one pack of 16
    assert groups_short_of_minimum(config, Queue(0, max_group_size=16)) == 4


@pytest.mark.parametrize(
    ("handling", "cap"),
    [
        (EvalHandlingEnum.STOP_TRAIN, 0),
        (EvalHandlingEnum.LIMIT_TRAIN, 5),
        (EvalHandlingEnum.NONE, 10),
    ],
)
def test_an_evaluation_takes_workers_as_configured(handling, cap):
    config = settings(8, 64, eval_handling=handling, eval_limit_ratio=0.5)
    assert worker_cap(config, 10, evaluating=True) == cap
    assert worker_cap(config, 10, evaluating=False) == 10


@pytest.mark.parametrize(
    ("old", "new", "interval", "due"),
    [
        (0, 1, 1, True),  # an interval of one fires at every step
        (1, 2, 1, True),
        (0, 9, 10, False),
        (9, 10, 10, True),
        (10, 11, 10, False),
        (8, 23, 10, True),  # a jump over a whole period is not missed
        (10, 20, 10, True),
        (5, 5, 5, False),
        (0, 100, 0, False),
        (0, 100, -1, False),
    ],
)
def test_what_is_due_follows_the_floor_rule(old, new, interval, due):
    assert is_due(old, new, interval) is due


@pytest.mark.parametrize(
    ("step", "queued", "total", "stop"),
    [
        (0, 0, 3, False),
        (2, 0, 3, False),
        (2, 8, 3, False),  # the leased batch is the second: the third is still to be made
        (2, 16, 3, True),  # the second is leased, the third is queued
        (3, 8, 3, True),  # the last one is being trained on
        (3, 0, 3, True),
        (4, 0, 3, True),
        (0, 0, 0, True),
    ],
)
def test_the_run_ends_when_the_last_batch_can_be_filled(step, queued, total, stop):
    config = settings(8, 64, total_steps=total)
    assert should_stop(config, status(step, queued)) is stop


def test_batches_fetched_ahead_are_not_counted_as_steps_and_as_queue():
    """Two of three are delivered and leased; nothing is queued for the third."""
    config = settings(8, 64, total_steps=3)
    assert not should_stop(config, status(2, 16, batches_open=2))
    assert should_stop(config, status(2, 24, batches_open=2))


def test_the_run_does_not_end_before_the_batch_size_is_known():
    assert not should_stop(settings(8, -1, total_steps=3), status(0, 100))


@pytest.mark.parametrize(
    ("step", "current", "version", "queued", "settled"),
    [
        (10, 10, 9, 8, False),  # delivered, still trained on
        (10, 10, 10, 8, True),  # by the version
        (10, 10, 0, 0, True),  # acked, by a trainer that reports no versions
        (10, 11, 0, 8, True),  # a later batch was delivered
    ],
)
def test_an_evaluation_waits_for_the_weights_of_its_step(
    step, current, version, queued, settled
):
    assert weights_have_settled(step, current, version, queued) is settled


@pytest.mark.parametrize(
    ("held", "own", "batch_size", "groups"),
    [
        (1, 1, 4, 0),  # a group of two: the rest after the last batch
        (2, 2, 4, 2),  # they may be a batch that is still trained on
        (2, 0, 4, 0),
        (1, 1, -1, 1),  # the size of a batch is not known
    ],
)
def test_groups_that_make_no_batch_are_not_waited_for(held, own, batch_size, groups):
    answer = status(2, held, self_queue_size=own, max_group_size=2)
    assert groups_of_batches(answer, batch_size) == groups

"""Admission to the batch, grouping of prompts and allocation of memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from atroposlib.inference.engine.request import SequenceState
from atroposlib.inference.engine.scheduler import Scheduler, prefill_groups
from tests.inference.helpers import request


def sequence(prompt_len: int, max_tokens: int) -> SequenceState:
    return SequenceState(
        request=request([5] * prompt_len, max_tokens=max_tokens), index=0, seed=0
    )


def test_sixty_four_short_requests_are_one_batch():
    scheduler = Scheduler(max_batch=64, kv_budget_tokens=64 * 20)
    scheduler.add(sequence(10, 10) for _ in range(70))
    assert len(scheduler.admit([])) == 64
    assert len(scheduler.waiting) == 6


def test_a_sequence_joins_as_soon_as_a_row_is_free():
    scheduler = Scheduler(max_batch=2, kv_budget_tokens=1000)
    scheduler.add(sequence(10, 10) for _ in range(3))
    running = scheduler.admit([])
    assert scheduler.admit(running) == []
    assert len(scheduler.admit(running[:1])) == 1


def test_memory_counts_the_rectangle_of_the_longest_sequence():
    scheduler = Scheduler(max_batch=10, kv_budget_tokens=300)
    short = [sequence(5, 5), sequence(5, 5)]
    scheduler.add([sequence(50, 50)])
    assert len(scheduler.admit(short)) == 1  # 3 rows x 100 columns
    scheduler.add([sequence(50, 51)])
    assert scheduler.admit(short) == []  # 3 x 101 do not fit


def test_a_long_request_is_not_overtaken_by_later_short_ones():
    scheduler = Scheduler(max_batch=10, kv_budget_tokens=300)
    scheduler.add([sequence(200, 50), sequence(5, 5)])
    assert scheduler.admit([sequence(5, 5)]) == []


@given(st.lists(st.integers(1, 200), max_size=40), st.integers(1, 500))
def test_prefill_groups_hold_each_prompt_once_within_the_bound(lengths, max_tokens):
    groups = prefill_groups(lengths, max_tokens)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        padded = len(group) * max(lengths[i] for i in group)
        assert len(group) == 1 or padded <= max_tokens

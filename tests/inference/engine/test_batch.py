"""Rows of the running batch: joining, appending, leaving. Admission and grouping of prompts."""

from __future__ import annotations

import torch
from hypothesis import given, strategies as st

from atroposlib.inference.engine.batch import RunningBatch, Scheduler, prefill_groups
from atroposlib.inference.engine.request import SequenceState
from tests.inference.helpers import request


def sequence(prompt_len: int, **params) -> SequenceState:
    return SequenceState(request=request([5] * prompt_len, **params), index=0, seed=prompt_len)


def waiting(prompt_len: int, max_tokens: int) -> SequenceState:
    return sequence(prompt_len, max_tokens=max_tokens)


def batch_of(*sequences: SequenceState) -> RunningBatch:
    batch = RunningBatch(torch.device("cpu"))
    batch.resize((4, 16), (0, 0))
    batch.join(list(sequences))
    return batch


def test_joining_fills_the_columns_of_the_new_rows():
    batch = batch_of(sequence(2, max_tokens=3, min_tokens=1), sequence(4, max_tokens=1))
    rows = slice(0, 2)
    assert batch.column("length", rows).tolist() == [2, 4]
    assert batch.column("max_len", rows).tolist() == [5, 5]
    assert batch.column("min_len", rows).tolist() == [3, 4]
    assert batch.column("seed", rows).tolist() == [2, 4]
    assert (len(batch), batch.widest(), batch.any_min_tokens) == (2, 4, True)


def test_a_token_is_appended_after_the_tokens_of_its_row():
    batch = batch_of(sequence(2), sequence(4))
    batch.append(slice(1, 2), torch.tensor([7]), torch.tensor([-0.5]))
    assert batch.tokens[1, 4] == 7 and batch.logprobs[1, 4] == -0.5
    assert batch.column("length", slice(0, 2)).tolist() == [2, 5]


def test_removed_rows_are_replaced_by_the_last_rows():
    batch = batch_of(sequence(1), sequence(2), sequence(3), sequence(4, temperature=0.0))
    assert batch.any_greedy
    source, target = batch.leave([0, 3])
    assert (source.tolist(), target.tolist()) == ([2], [0])
    assert batch.column("length", slice(0, 2)).tolist() == [3, 2]
    assert [s.prompt_len for s in batch.sequences] == [3, 2]
    assert not batch.any_greedy


def test_sixty_four_short_requests_are_one_batch():
    scheduler = Scheduler(max_batch=64, kv_budget_tokens=64 * 20)
    scheduler.add(waiting(10, 10) for _ in range(70))
    assert len(scheduler.admit([])) == 64
    assert len(scheduler.waiting) == 6


def test_a_sequence_joins_as_soon_as_a_row_is_free():
    scheduler = Scheduler(max_batch=2, kv_budget_tokens=1000)
    scheduler.add(waiting(10, 10) for _ in range(3))
    running = scheduler.admit([])
    assert scheduler.admit(running) == []
    assert len(scheduler.admit(running[:1])) == 1


def test_memory_counts_the_rectangle_of_the_longest_waiting():
    scheduler = Scheduler(max_batch=10, kv_budget_tokens=300)
    short = [waiting(5, 5), waiting(5, 5)]
    scheduler.add([waiting(50, 50)])
    assert len(scheduler.admit(short)) == 1  # 3 rows x 100 columns
    scheduler.add([waiting(50, 51)])
    assert scheduler.admit(short) == []  # 3 x 101 do not fit


def test_a_long_request_is_not_overtaken_by_later_short_ones():
    scheduler = Scheduler(max_batch=10, kv_budget_tokens=300)
    scheduler.add([waiting(200, 50), waiting(5, 5)])
    assert scheduler.admit([waiting(5, 5)]) == []


@given(st.lists(st.integers(1, 200), max_size=40), st.integers(1, 500))
def test_prefill_groups_hold_each_prompt_once_within_the_bound(lengths, max_tokens):
    groups = prefill_groups(lengths, max_tokens)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        padded = len(group) * max(lengths[i] for i in group)
        assert len(group) == 1 or padded <= max_tokens

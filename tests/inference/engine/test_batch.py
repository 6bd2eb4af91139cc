"""Rows of the running batch: joining, appending tokens, leaving."""

from __future__ import annotations

import torch

from atroposlib.inference.engine.batch import RunningBatch
from atroposlib.inference.engine.request import SequenceState
from tests.inference.helpers import request


def sequence(prompt_len: int, **params) -> SequenceState:
    return SequenceState(request=request([5] * prompt_len, **params), index=0, seed=prompt_len)


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

"""Ragged lists as padded tensors, and the mismatch to the sampler."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from example_trainer.data.packing import pack_rows, plan_microbatches
from example_trainer.distributed.ranks import Ranks
from example_trainer.model.policy import Scores
from example_trainer.update.pad import (
    pad_teacher,
    pad_to_tensor,
    reduce_mismatch,
    sampled_mismatch,
)
from example_trainer.weights.mismatch import Mismatch
from tests.trainer.rows import row

CPU = torch.device("cpu")
ROWS = [row([1], [2]), row([1], [3, 4, 5])]


def microbatch(rows):
    packs = pack_rows(rows, max_tokens=64, crossover=100.0, share=False)
    (found,) = plan_microbatches(packs, rows, 64)
    return found


def test_rows_are_padded_to_the_longest_in_the_order_of_the_microbatch():
    one = microbatch(ROWS)
    table = pad_to_tensor(one, [[7.0], [1.0, 2.0, 3.0]], CPU, fill=-1.0)
    by_row = dict(zip(one.row_ids, table.tolist()))
    assert by_row == {0: [7.0, -1.0, -1.0], 1: [1.0, 2.0, 3.0]}


def test_a_teacher_is_padded_to_its_longest_entry():
    taught = replace(
        ROWS[1],
        teacher_ids=[[9], [8, 9], []],
        teacher_logprobs=[[-0.5], [-1.0, -2.0], []],
    )
    logprobs, present = pad_teacher(microbatch([taught]), [taught], CPU)
    assert logprobs.tolist() == [[[-0.5, 0.0], [-1.0, -2.0], [0.0, 0.0]]]
    assert present.tolist() == [[[True, False], [True, True], [False, False]]]


def test_only_tokens_of_the_version_held_here_are_compared():
    scores = Scores(
        logprobs=torch.tensor([[-1.0, -1.0, -1.0]]),
        entropy=torch.zeros(1, 3),
        mask=torch.tensor([[True, True, True]]),
    )
    behaviour, versions = torch.tensor([[-1.5, -1.1, -9.0]]), torch.tensor([[4, 4, 3]])
    found = sampled_mismatch(scores, behaviour, versions, 4, tolerance=0.2)
    assert (found.tokens, found.beyond) == (2, 1)
    assert (found.total, found.max) == (pytest.approx(0.6), pytest.approx(0.5))


def test_mismatch_of_a_single_rank_needs_no_reduction():
    own = Mismatch(tokens=3, total=0.5, max=0.25, beyond=1)
    assert reduce_mismatch(own, Ranks.single()) is own

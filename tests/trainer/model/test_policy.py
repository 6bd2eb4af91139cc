"""Scores of packed rows: temperature, teacher, shares of ranks."""

from __future__ import annotations

import pytest
import torch

from example_trainer.distributed.ranks import Ranks
from example_trainer.model import loading
from tests.trainer.rows import BRANCHING, ROWS, at, flat, row


def test_every_trained_token_is_scored_at_its_own_temperature(policy):
    one = row([5, 6], [7, 8], temperatures=[1.0, 0.5, 1.5])
    logits = policy.model(torch.tensor([one.tokens]), use_cache=False).logits[0, 1:3]
    logits = logits / torch.tensor([[0.5], [1.5]])
    expected = torch.log_softmax(logits, -1)[[0, 1], [7, 8]]
    assert policy.trained_logprobs([one])[0] == pytest.approx(expected.tolist(), abs=1e-5)


def test_rows_that_share_a_prefix_may_sample_its_next_token_differently(policy):
    rows = [at(t, row([5, 6], [7, 8])) for t in (0.5, 1.0, 0.5)]
    (plan,) = policy.plan(rows)
    assert plan.length == 3 and plan.temperatures.tolist() == [0.5, 1.0, 0.5, 1.0]
    apart = [policy.trained_logprobs([one])[0] for one in rows]
    assert flat(policy.trained_logprobs(rows)) == pytest.approx(flat(apart), abs=1e-5)


def test_trained_tokens_are_scored_at_the_temperature_of_their_row(policy):
    one = at(0.5, row([5, 6], [7, 8]))
    logits = policy.model(torch.tensor([one.tokens]), use_cache=False).logits[0, 1:3]
    expected = torch.log_softmax(logits / 0.5, -1)[[0, 1], [7, 8]]
    assert policy.trained_logprobs([one])[0] == pytest.approx(expected.tolist(), abs=1e-5)


def test_rows_without_a_trained_token_have_no_logprobs(policy):
    found = policy.trained_logprobs([row([5, 6], []), ROWS[0]])
    assert [len(logprobs) for logprobs in found] == [0, 3]


def test_the_candidates_of_a_teacher_are_scored_at_the_distillation_temperature(config):
    policy = loading.load(config())
    one = row([5, 6], [7, 8], teacher_ids=[[], [7, 9], [4]], teacher_logprobs=None)
    one = at(0.5, one)
    (plan,) = policy.plan([one])
    found = policy.score(plan, teacher_temperature=2.0).teacher
    logits = policy.model(torch.tensor([one.tokens]), use_cache=False).logits[0, 1:3]
    expected = torch.log_softmax(logits / 2.0, -1)
    assert found.shape == (1, 2, 2)
    assert torch.allclose(found[0, 0], expected[0, [7, 9]], atol=1e-5)
    assert torch.allclose(found[0, 1, 0], expected[1, 4], atol=1e-5)
    assert policy.score(plan).teacher is None


def test_ranks_score_their_share_and_get_all_scores(policy):
    """Two ranks in turn; their sum is what one alone finds."""
    alone = flat(policy.trained_logprobs(BRANCHING))

    class Rank(Ranks):
        def sum_(self, tensor):
            self.partial.append(tensor.clone())
            return tensor

    Rank.partial = []
    for rank in (0, 1):
        policy.world = Rank(rank, 2)
        policy.trained_logprobs(BRANCHING)
    first, second = Rank.partial
    assert not (first * second).any() and first.any() and second.any()
    assert (first + second).tolist() == pytest.approx(alone, abs=1e-6)

"""Scores of packed rows: temperature, teacher, shares of ranks; the step of every layout."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st

from example_trainer.data.packing import padding_share
from example_trainer.distributed.ranks import Ranks
from example_trainer.model import loading
from tests.examples import examples
from tests.trainer.layouts import assert_equal, our_step, reference_step
from tests.trainer.rows import BRANCHING, MULTI_TURN, ROWS, at, flat, masked_row, row


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
    policy = loading.load_policy(config())
    teacher = {"teacher_ids": [[], [7, 9], [4]], "teacher_temperature": 2.0}
    one = row([5, 6], [7, 8], **teacher)
    one = at(0.5, one)
    (plan,) = policy.plan([one])
    found = policy.score(plan, teacher=True).teacher
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


# --- layouts: packed, shared, padded, over ranks ------------------------------------------


@pytest.mark.parametrize("rows", [BRANCHING, MULTI_TURN], ids=["branching", "multi-turn"])
def test_gradients_of_ranks_sum_to_the_full_gradient(gqa_policy, reference, rows):
    """Each rank runs equally many micro-batches, idle ones without rows among them."""
    expected = reference_step(reference, rows)
    *ours, plans = our_step(gqa_policy, rows, divisor=5)
    assert len(plans) % 5 == 0
    assert_equal(ours, expected)


def test_a_microbatch_without_rows_runs_backward_through_every_weight(gqa_policy):
    policy = gqa_policy
    plans = policy.plan([BRANCHING[0]], divisor=2)
    scores = policy.score(plans[1])
    assert scores.logprobs.shape == (1, 1) and not scores.mask.any()
    policy.model.zero_grad()
    scores.logprobs.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in policy.parameters())


turn = st.tuples(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.booleans())


def sampled_at(temperatures, one):
    """The row with these temperatures in turn, token by token."""
    count = len(one.labels)
    return replace(one, temperatures=(temperatures * count)[:count])


rows_of_any_shape = st.lists(
    st.builds(
        lambda turns, group, temperatures: sampled_at(
            temperatures, masked_row([([1], False), *turns, ([2], True)], group)
        ),
        st.lists(turn, min_size=0, max_size=4),
        st.sampled_from("gh"),
        st.lists(st.sampled_from([1.0, 0.6, 1.5]), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=7,
)


@examples(25)
@given(
    rows=rows_of_any_shape,
    how=st.sampled_from(["packed", "shared", "padded"]),
    budget=st.sampled_from([2, 9, 24, 1000]),
    ranks=st.sampled_from([1, 3]),
)
def test_any_layout_gives_the_loss_and_gradients_of_one_padded_batch(
    shared_policy, reference, rows, how, budget, ranks
):
    policy = shared_policy
    policy.padded, policy.share_prefixes = how == "padded", how == "shared"
    policy.max_tokens_per_microbatch = budget
    *ours, plans = our_step(policy, rows, divisor=ranks)
    assert_equal(ours, reference_step(reference, rows))
    assert how == "padded" or padding_share([one for one in plans if one.packs]) == 0


@pytest.fixture(scope="module")
def shared_policy(gqa_dir):
    from example_trainer.settings.config import TrainingConfig

    cfg = TrainingConfig(model_name=str(gqa_dir), device="cpu", seq_len=64, inference_urls=[])
    made = loading.load_policy(cfg)
    made.attention_crossover = float("inf")
    return made

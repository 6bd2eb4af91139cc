"""The step is the same for every layout: packed, shared, padded, over ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_trainer.data.packing import padding_share
from example_trainer.model import loading
from tests.examples import examples
from tests.trainer.layouts import assert_equal, our_step, reference_step
from tests.trainer.rows import BRANCHING, MULTI_TURN, masked_row


@pytest.fixture
def policy(gqa_policy):
    return gqa_policy


@pytest.mark.parametrize("rows", [BRANCHING, MULTI_TURN], ids=["branching", "multi-turn"])
def test_gradients_of_ranks_sum_to_the_full_gradient(policy, reference, rows):
    """Each rank runs equally many micro-batches, idle ones without rows among them."""
    expected = reference_step(reference, rows)
    *ours, plans = our_step(policy, rows, divisor=5)
    assert len(plans) % 5 == 0
    assert_equal(ours, expected)


def test_a_microbatch_without_rows_runs_backward_through_every_weight(policy):
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
    made = loading.load(cfg)
    made.attention_crossover = float("inf")
    return made

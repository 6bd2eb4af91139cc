"""Pure sampling: hand-computed logprobs, truncation, and frequencies that match."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st

from atroposlib.inference.engine.sampling import (
    RowParams,
    derive_seed,
    sample,
    scale,
    top_logprobs,
    truncate,
    uniform,
)


def params(
    rows: int, temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0
) -> RowParams:
    return RowParams(
        temperature=torch.full((rows,), temperature),
        top_p=torch.full((rows,), top_p),
        top_k=torch.full((rows,), top_k),
        seed=torch.arange(rows),
        any_greedy=temperature <= 0,
        any_truncated=top_p < 1.0 or top_k > 0,
    )


def draw(logits: list[float], count: int, **kwargs: float) -> torch.Tensor:
    """``count`` independent draws from one distribution."""
    rows = params(count, **kwargs)
    scaled = scale(torch.tensor([logits]).repeat(count, 1), rows.temperature)
    tokens, _ = sample(scaled, rows, uniform(rows.seed, torch.zeros(count, dtype=torch.int64)))
    return tokens


def test_the_logprob_is_taken_after_temperature_and_before_truncation():
    logits = [math.log(4.0), math.log(1.0)]  # at T=0.5: 16 to 1
    rows = params(1, temperature=0.5, top_k=1)
    scaled = scale(torch.tensor([logits]), rows.temperature)
    token, logprob = sample(scaled, rows, torch.tensor([0.99]))
    assert token.tolist() == [0]
    assert logprob.item() == pytest.approx(math.log(16 / 17), abs=1e-6)


def test_greedy_takes_the_most_likely_token_with_its_logprob_at_temperature_one():
    rows = params(1, temperature=0.0)
    scaled = scale(torch.tensor([[0.0, math.log(3.0)]]), rows.temperature)
    token, logprob = sample(scaled, rows, torch.tensor([0.0]))
    assert token.tolist() == [1]
    assert logprob.item() == pytest.approx(math.log(0.75), abs=1e-6)


def test_frequencies_match_the_probabilities():
    probs = torch.tensor([0.5, 0.3, 0.15, 0.05])
    tokens = draw(probs.log().tolist(), 20_000)
    found = torch.bincount(tokens, minlength=4) / 20_000
    # five standard deviations of a binomial share
    assert ((found - probs).abs() < 5 * (probs * (1 - probs) / 20_000).sqrt()).all()


def test_a_token_of_probability_zero_is_never_drawn():
    rows = params(2)
    scaled = torch.tensor([[-torch.inf, 0.0, -torch.inf]] * 2)
    tokens, _ = sample(scaled, rows, torch.tensor([0.0, 1.0 - 2.0**-53], dtype=torch.float64))
    assert tokens.tolist() == [1, 1]


def test_banned_tokens_are_not_drawn_but_keep_their_mass():
    rows = params(1)
    scaled = torch.zeros(1, 2)
    token, logprob = sample(scaled, rows, torch.tensor([0.0]), torch.tensor([[True, False]]))
    assert token.tolist() == [1]
    assert logprob.item() == pytest.approx(math.log(0.5), abs=1e-6)


@pytest.mark.parametrize(
    ("top_p", "top_k", "kept"),
    [
        (1.0, 2, {0, 1}),
        (0.5, 0, {0}),
        (0.51, 0, {0, 1}),
        (0.79, 0, {0, 1}),
        (0.81, 0, {0, 1, 2}),
        (1e-9, 0, {0}),
        (0.81, 2, {0, 1}),
    ],
)
def test_truncation_keeps_the_smallest_set_that_reaches_top_p(top_p, top_k, kept):
    scaled = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    cut = truncate(scaled, torch.tensor([top_p]), torch.tensor([top_k]))
    assert set(torch.isfinite(cut[0]).nonzero().flatten().tolist()) == kept


def test_truncation_leaves_other_rows_alone():
    scaled = torch.randn(3, 10)
    cut = truncate(scaled, torch.tensor([1.0, 0.3, 1.0]), torch.tensor([0, 0, 0]))
    assert torch.equal(cut[[0, 2]], scaled[[0, 2]])
    assert not torch.equal(cut[1], scaled[1])


@given(st.integers(0, 2**62), st.integers(0, 10_000))
def test_uniforms_lie_in_the_unit_interval_and_repeat(seed, step):
    args = torch.tensor([seed]), torch.tensor([step])
    value = uniform(*args).item()
    assert 0.0 <= value < 1.0
    assert uniform(*args).item() == value


def test_uniforms_of_neighbouring_seeds_and_steps_are_spread_evenly():
    seeds = torch.tensor([derive_seed(0, i) for i in range(100)]).repeat_interleave(100)
    values = uniform(seeds, torch.arange(100).repeat(100))
    tenths = torch.bincount((values * 10).long(), minlength=10)
    assert tenths.min() > 850 and tenths.max() < 1150  # 1000 +- 5 standard deviations


def test_top_logprobs_are_sorted_and_normalised():
    ids, values = top_logprobs(torch.tensor([[1.0, 3.0, 2.0]]), 5)
    assert ids.tolist() == [[1, 2, 0]]
    assert values.exp().sum().item() == pytest.approx(1.0)

"""The mask of trained tokens and bounded log ratios."""

from __future__ import annotations

import pytest
import torch

from example_trainer.losses.tokens import (
    MAX_LOG_RATIO,
    LossInputs,
    TokenMask,
    bound_log_ratio,
    kl_estimate,
)

NAN = float("nan")


def test_sums_go_over_trained_tokens_with_and_without_weights():
    tokens = TokenMask.of(torch.tensor([[2.0, 0.0, 0.5]]))
    values = tokens.only(torch.tensor([[3.0, NAN, 4.0]]))
    assert values.tolist() == [[3.0, 0.0, 4.0]]
    assert float(tokens.loss_sum(values)) == 8.0
    assert float(tokens.total(values)) == 7.0
    assert tokens.row_mean(values).tolist() == [[3.5]]


def test_a_log_ratio_is_bounded_and_a_nan_stays_one():
    found = bound_log_ratio(torch.tensor([-1e3, 0.5, 1e3, NAN]))
    assert found[:3].tolist() == [-MAX_LOG_RATIO, 0.5, MAX_LOG_RATIO]
    assert found[3].isnan()


def test_kl_is_zero_for_equal_policies_and_positive_else():
    assert kl_estimate(torch.tensor([0.0])).tolist() == [0.0]
    assert kl_estimate(torch.tensor([1.0, -1.0])).tolist() == pytest.approx(
        [0.7182818, 0.3678794]
    )


def test_the_log_ratio_to_a_centre_is_zero_where_masked():
    logprobs, centre = torch.tensor([[-1.0, NAN]]), torch.tensor([[-1.5, -2.0]])
    mask = torch.tensor([[True, False]])
    batch = LossInputs(logprobs, centre, centre, centre, mask)
    assert batch.log_ratio(centre).tolist() == [[0.5, 0.0]]

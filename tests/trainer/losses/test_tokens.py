"""The mask of trained tokens and bounded log ratios."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from example_trainer.losses import gspo, reinforce
from example_trainer.losses.tokens import (
    MAX_LOG_RATIO,
    LossInputs,
    TokenMask,
    bound_log_ratio,
    kl_estimate,
)
from example_trainer.settings.loss import LossSettings

NAN = float("nan")


def test_sums_go_over_trained_tokens_with_and_without_weights():
    tokens = TokenMask.of(torch.tensor([[2.0, 0.0, 0.5]]))
    values = tokens.only(torch.tensor([[3.0, NAN, 4.0]]))
    assert values.tolist() == [[3.0, 0.0, 4.0]]
    assert float(tokens.loss_sum(values)) == 8.0
    assert float(tokens.total(values)) == 7.0
    assert tokens.row_mean(values).tolist() == [[3.5]]


def test_a_token_without_weight_belongs_to_its_sequence():
    """w of two tokens is 2 and 1/4: their product 1/2 weighs the first, of log p -1 and A 1."""
    behaviour = torch.tensor([[-1.0, -1.0]])
    proximal = behaviour + torch.tensor([[2.0, 0.25]]).log()
    logprobs, ones = torch.tensor([[-1.0, -1.0]]), torch.tensor([[1.0, 1.0]])
    batch = LossInputs(logprobs, proximal, behaviour, ones, torch.tensor([[1.0, 0.0]]))
    settings = LossSettings(importance_level="product")
    whole = replace(batch, trained=torch.tensor([[True, True]]))
    losses = [reinforce.loss(inputs, settings) for inputs in (batch, whole)]
    assert [float(loss) for loss, _ in losses] == pytest.approx([2.0, 0.5])
    # The mean over the two tokens is 1/2, and not half of 2.
    assert float(losses[1][1]["importance_weight"]) == pytest.approx(1.0)
    # s = sqrt(1/2 x 4) of ratios 1/2 and 4, bounded by 1 + 4e-4; its clip counts both tokens.
    total, metrics = gspo.loss(whole, settings)
    assert float(total) == pytest.approx(-0.5 * 1.0004)
    assert float(metrics["clip_ratio"]) == 2.0
    assert float(metrics["ratio_mean"]) == pytest.approx(2 * 2**0.5)


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

"""GRPO's clipped objective against the sampler, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from example_trainer.losses import grpo
from example_trainer.losses.tokens import LossInputs
from example_trainer.settings.loss import LossSettings

RATIOS = [0.5, 1.0, 1.5]


def inputs(advantage: float) -> LossInputs:
    """Tokens with these ratios to the sampler; the proximal logprobs are NaN."""
    behaviour = torch.full((1, 3), math.log(0.2))
    logprobs = behaviour + torch.tensor([RATIOS]).log()
    nan = torch.full((1, 3), float("nan"))
    return LossInputs(
        logprobs, nan, behaviour, torch.full((1, 3), advantage), torch.ones(1, 3)
    )


@pytest.mark.parametrize(
    ("advantage", "loss"), [(2.0, -2.0 * (0.5 + 1.0 + 1.2)), (-2.0, 2.0 * (0.8 + 1.0 + 1.5))]
)
def test_the_ratio_to_the_sampler_is_clipped_for_both_signs(advantage, loss):
    found, metrics = grpo.loss(inputs(advantage), LossSettings(clip_eps=0.2))
    assert float(found) == pytest.approx(loss)
    assert float(metrics["ratio_mean"]) == pytest.approx(sum(RATIOS))
    assert int(metrics["clip_ratio"]) == 1


def test_the_dual_clip_bounds_the_loss_of_a_bad_token():
    found, metrics = grpo.loss(inputs(-2.0), LossSettings(clip_eps=0.2, dual_clip=1.2))
    assert float(found) == pytest.approx(2.0 * (0.8 + 1.0 + 1.2))
    assert int(metrics["dual_clip_ratio"]) == 1

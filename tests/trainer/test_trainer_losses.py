"""The loss against numbers worked out by hand, and its gradient against differences."""

from __future__ import annotations

import math

import pytest
import torch

from atroposlib.errors import ConfigError
from example_trainer import losses
from example_trainer.config import TrainingConfig

CFG = TrainingConfig(model_name="m", clip_eps=0.2, clip_eps_high=0.3)


def grpo(logprobs, behaviour, advantages, mask=None, cfg=CFG):
    mask = torch.ones_like(logprobs) if mask is None else mask
    return losses.get("grpo")(logprobs, logprobs.detach(), behaviour, advantages, mask, cfg)


# ratio, advantage, loss = -min(r A, clip(r, 0.8, 1.3) A), d loss / d logprob, clipped
BY_HAND = [
    (1.0, 2.0, -2.0, -2.0, 0),
    (1.1, 2.0, -2.2, -2.2, 0),
    (2.0, 2.0, -2.6, 0.0, 1),  # far enough up: no gradient
    (0.5, 2.0, -1.0, -1.0, 0),  # went the wrong way: full gradient
    (1.0, -2.0, 2.0, 2.0, 0),
    (0.9, -2.0, 1.8, 1.8, 0),
    (0.5, -2.0, 1.6, 0.0, 1),  # far enough down: no gradient
    (2.0, -2.0, 4.0, 4.0, 0),  # went the wrong way: full gradient
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "slope", "clipped"), BY_HAND)
def test_the_clip_is_right_for_both_signs_and_both_sides(
    ratio, advantage, loss, slope, clipped
):
    logprob = torch.tensor([[math.log(ratio) - 1.5]], dtype=torch.double, requires_grad=True)
    behaviour = torch.full_like(logprob, -1.5)
    total, metrics = grpo(logprob, behaviour, torch.full_like(logprob, advantage))
    total.backward()
    assert float(total.detach()) == pytest.approx(loss)
    assert float(logprob.grad) == pytest.approx(slope)
    assert int(metrics["clip_ratio"]) == clipped
    assert float(metrics["ratio_mean"]) == pytest.approx(ratio)


def test_a_masked_token_adds_nothing_even_if_its_numbers_are_absurd():
    logprobs = torch.tensor([[-1.0, 900.0]], requires_grad=True)
    behaviour = torch.tensor([[-1.0, -900.0]])
    total, metrics = grpo(
        logprobs, behaviour, torch.tensor([[1.0, 5.0]]), torch.tensor([[1.0, 0.0]])
    )
    total.backward()
    assert float(total.detach()) == -1.0
    assert logprobs.grad.tolist() == [[-1.0, 0.0]]
    assert float(metrics["approx_kl"]) == 0.0


def test_the_gradient_is_the_derivative():
    torch.manual_seed(0)
    logprobs = (-torch.rand(3, 5, dtype=torch.double) * 3).requires_grad_()
    behaviour = logprobs.detach() + 0.3 * torch.randn(3, 5, dtype=torch.double)
    advantages = torch.randn(3, 5, dtype=torch.double)
    weights = (torch.rand(3, 5) > 0.3).double()
    assert torch.autograd.gradcheck(
        lambda x: grpo(x, behaviour, advantages, weights)[0], (logprobs,)
    )


def test_at_ratio_one_the_gradient_is_the_plain_policy_gradient():
    logprobs = torch.tensor([[-0.5, -2.0]], requires_grad=True)
    total, _ = grpo(logprobs, logprobs.detach(), torch.tensor([[1.5, -0.5]]))
    total.backward()
    assert logprobs.grad.tolist() == [[-1.5, 0.5]]


def test_without_clip_eps_high_the_clip_is_symmetric():
    cfg = TrainingConfig(model_name="m", clip_eps=0.2)
    logprob = torch.tensor([[math.log(1.25)]])
    total, _ = grpo(logprob, torch.zeros(1, 1), torch.ones(1, 1), cfg=cfg)
    assert float(total) == pytest.approx(-1.2)


def test_an_unknown_loss_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="there are: grpo"):
        losses.get("ppo3")

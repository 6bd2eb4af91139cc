"""The value model: a scalar head, planned and packed as the policy is."""

from __future__ import annotations

import pytest
import torch

from example_trainer.model.critic import load_value_model, value_loss, valued_row
from tests.trainer.rows import BRANCHING, MULTI_TURN, flat


@pytest.fixture
def critic(config):
    """Build a critic with a nonzero head, as after some training."""
    made = load_value_model(config())
    with torch.no_grad():
        torch.nn.init.normal_(made.model.score.weight)
    return made


def test_first_values_are_zero(config):
    fresh = load_value_model(config())
    assert not fresh.padded and fresh.share_prefixes
    assert fresh.trained_values(BRANCHING[:1]) == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("padded", [False, True])
def test_values_and_logprobs_have_the_same_positions(critic, padded):
    critic.padded, critic.attention_crossover = padded, float("inf")
    rows = [*BRANCHING, *MULTI_TURN]
    for row, found in zip(rows, critic.trained_values(rows)):
        every = critic.model(torch.tensor([row.tokens]), use_cache=False).logits[0, :, 0]
        assert found == pytest.approx(every[row.trained].tolist(), abs=1e-5)


def test_values_have_gradients_to_head_and_decoder(critic):
    (plan,) = critic.plan(BRANCHING)
    found, mask = critic.score(plan)
    assert found.shape == mask.shape == plan.shape
    (found * mask).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in critic.parameters())


def test_the_score_of_a_whole_sequence_is_that_of_its_last_token(critic):
    tokens = [5, 6, 7]
    ((found,),) = critic.trained_values([valued_row(tokens, "g")])
    every = critic.model(torch.tensor([tokens]), use_cache=False).logits[0, :, 0]
    assert found == pytest.approx(every[-1].item(), abs=1e-5)
    (plan,) = critic.plan([valued_row(tokens, "g")])
    assert plan.length == len(tokens)


def test_saved_critic_loads_with_its_head(critic, config, tmp_path):
    critic.model.save_pretrained(tmp_path / "critic")
    critic.tokenizer.save_pretrained(tmp_path / "critic")
    again = load_value_model(config(), str(tmp_path / "critic"))
    before, after = (flat(one.trained_values(MULTI_TURN)) for one in (critic, again))
    assert after == pytest.approx(before, rel=1e-5)


def test_bfloat16_values_come_from_a_float32_head(config):
    low = load_value_model(config(dtype="bfloat16"))
    (plan,) = low.plan(MULTI_TURN)
    found, _ = low.score(plan)
    assert found.dtype is torch.float32


# value, loss = max((v - R)^2, (old + clip(v - old) - R)^2) / 2, slope; old 0, R 1, eps 0.2
@pytest.mark.parametrize(
    ("value", "loss", "gradient", "clipped"),
    [
        (0.1, 0.405, -0.9, 0),
        (0.5, 0.32, 0.0, 1),  # moved far enough toward R
        (-0.5, 1.125, -1.5, 0),  # moved away: full gradient back
        (2.0, 0.5, 1.0, 0),  # overshot
    ],
)
def test_the_critic_s_loss_by_hand(value, loss, gradient, clipped):
    values = torch.tensor([[value, 1e9]], dtype=torch.double, requires_grad=True)
    old, returns = torch.tensor([[0.0, float("nan")]]), torch.tensor([[1.0, float("inf")]])
    total, metrics = value_loss(values, old, returns, torch.tensor([[1.0, 0.0]]), 0.2)
    total.backward()
    assert float(total.detach()) == pytest.approx(loss)
    assert values.grad.tolist() == [[pytest.approx(gradient), 0.0]]
    assert int(metrics["value_clip_ratio"]) == clipped
    assert float(metrics["value_error"]) == pytest.approx((value - 1) ** 2)
    assert (float(metrics["value_mean"]), float(metrics["return_mean"])) == (
        pytest.approx(value),
        1.0,
    )


def test_the_gradient_of_the_critic_s_loss_is_its_derivative_and_keeps_a_nan():
    torch.manual_seed(0)
    values = torch.randn(3, 4, dtype=torch.double, requires_grad=True)
    old, returns = torch.randn(3, 4).double(), torch.randn(3, 4).double()
    mask = torch.rand(3, 4)
    assert torch.autograd.gradcheck(
        lambda v: value_loss(v, old, returns, mask, 0.2)[0], (values,)
    )
    broken = values.detach().clone()
    broken[0, 0] = float("nan")
    broken.requires_grad_()
    total, _ = value_loss(broken, old, returns, mask, 0.2)
    total.backward()
    assert total.isnan() and broken.grad[0, 0].isnan()

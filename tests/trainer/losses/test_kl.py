"""The KL estimators: values and gradients."""

from __future__ import annotations

import math

import pytest
import torch

from atroposlib.errors import ConfigError
from example_trainer.losses import kl


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        ("k1", math.log(2), 1.0),
        ("k2", math.log(2) ** 2 / 2, math.log(2)),
        ("k3", 0.5 - 1 + math.log(2), 1 - 0.5),
    ],
)
def test_kl_estimators_by_hand_at_ratio_two(estimator, value, slope):
    logprobs = torch.tensor([[-1.0]], dtype=torch.double, requires_grad=True)
    found = kl.penalty(logprobs, logprobs.detach() - math.log(2), estimator)
    found.sum().backward()
    assert float(found.detach()) == pytest.approx(value)
    assert float(logprobs.grad) == pytest.approx(slope)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_gradient_of_an_estimator_is_its_derivative(estimator):
    torch.manual_seed(0)
    logprobs = -torch.rand(2, 3, dtype=torch.double).mul(3).requires_grad_()
    reference = logprobs.detach() + torch.randn(2, 3, dtype=torch.double)
    mask = torch.tensor([[1, 0, 1], [1, 1, 0]])
    assert torch.autograd.gradcheck(
        lambda x: kl.penalty(x, reference, estimator, mask), (logprobs,)
    )


def over_all_tokens():
    """A policy and a reference over five tokens, each token weighed as often as sampled."""
    torch.manual_seed(1)
    logits = torch.randn(5, dtype=torch.double, requires_grad=True)
    return logits, torch.randn(5, dtype=torch.double).log_softmax(0)


def slope(value, logits):
    return torch.autograd.grad(value, logits, retain_graph=True)[0]


def test_on_average_k1_and_k3_are_the_kl_and_k2_is_close_to_it():
    logits, reference = over_all_tokens()
    logprobs = logits.detach().log_softmax(0)
    exact = (logprobs.exp() * (logprobs - reference)).sum()
    near = reference * 0.02 + logprobs * 0.98
    near = near.log_softmax(0)
    for name in ("k1", "k3"):
        assert torch.allclose(
            (logprobs.exp() * kl.penalty(logprobs, reference, name)).sum(), exact
        )
    close = (logprobs.exp() * kl.penalty(logprobs, near, "k2")).sum()
    assert torch.allclose(close, (logprobs.exp() * (logprobs - near)).sum(), rtol=0.05)


def test_on_average_the_gradients_are_those_documented():
    """k1: none. k2: of KL(policy || reference). k3: of KL(reference || policy)."""
    logits, reference = over_all_tokens()
    logprobs = logits.log_softmax(0)
    sampled = logprobs.detach().exp()
    forward = (logprobs.exp() * (logprobs - reference)).sum()
    backward = (reference.exp() * (reference - logprobs)).sum()
    found = {
        name: slope(
            (sampled * kl.penalty(logits.log_softmax(0), reference, name)).sum(), logits
        )
        for name in ("k1", "k2", "k3")
    }
    assert torch.allclose(found["k1"], torch.zeros(5, dtype=torch.double))
    assert torch.allclose(found["k2"], slope(forward, logits))
    assert torch.allclose(found["k3"], slope(backward, logits))


def test_with_the_samplers_logprobs_k3_is_the_kl_on_average_whoever_sampled():
    """Value and gradient of KL(policy || reference), over samples of another policy."""
    logits, reference = over_all_tokens()
    behaviour = torch.randn(5, dtype=torch.double).log_softmax(0)
    logprobs = logits.log_softmax(0)
    exact = (logprobs.exp() * (logprobs - reference)).sum()
    found = kl.penalty(logprobs, reference, "k3", behaviour=behaviour)
    average = (behaviour.exp() * found).sum()
    assert torch.allclose(average, exact)
    assert torch.allclose(slope(average, logits), slope(exact, logits))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_masked_entries_have_no_effect_and_a_trained_nan_stays(estimator):
    logprobs = torch.tensor([[-1.0, float("nan"), float("nan")]], requires_grad=True)
    reference = torch.tensor([[-2.0, float("inf"), -1.0]])
    mask = torch.tensor([[1.0, 0.0, 1.0]])
    found = kl.penalty(logprobs, reference, estimator, mask)
    assert found[0, 0].isfinite() and found[0, 1] == 0 and found[0, 2].isnan()
    found[:, :2].sum().backward()
    assert logprobs.grad[0, :2].isfinite().all() and logprobs.grad[0, 1] == 0


def test_k2_and_k3_are_never_negative_and_k3_does_not_overflow():
    gap = torch.linspace(-200, 200, 401)[None]
    for name in ("k2", "k3"):
        found = kl.penalty(gap, torch.zeros_like(gap), name)
        assert (found >= 0).all() and found.isfinite().all()


def test_an_unknown_estimator_is_refused():
    with pytest.raises(ConfigError, match="k1, k2, k3"):
        kl.penalty(torch.zeros(1, 1), torch.zeros(1, 1), "k4")

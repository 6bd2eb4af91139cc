"""Reverse KL on sampled tokens: by hand, on average that of the vocabulary, and exactly 0."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from atroposlib.errors import ConfigError
from atroposlib.wire import MASKED_LOGPROB
from example_trainer import losses
from tests.trainer.loss_batches import gradient, one_token, random_batch, run, settings

LOSS = losses.get("reverse_kl")


def of_vocabulary(logits, behaviour, teacher, **fields):
    """The loss of every token of a vocabulary, each as often as ``behaviour`` samples it."""
    policy = logits.log_softmax(-1)
    return LOSS(
        policy[:, None],
        policy.detach()[:, None],
        behaviour[:, None],
        None,
        behaviour.exp()[:, None],
        settings(importance_cap=1e9, **fields),
        teacher_sampled=teacher[:, None],
    )[0]


def logprobs(seed, size=7):
    at = torch.Generator().manual_seed(seed)
    return torch.randn(size, dtype=torch.double, generator=at).log_softmax(-1)


@pytest.mark.parametrize("ratio_to", ["trainer", "sampler"])
def test_on_average_value_and_gradient_are_those_of_the_whole_vocabulary(ratio_to):
    """Samples of an older policy, and the gradient derived by hand: p (d - KL) of each logit."""
    logits = logprobs(0).clone().requires_grad_()
    behaviour, teacher = logprobs(1), logprobs(2)
    total = of_vocabulary(logits, behaviour, teacher, ratio_to=ratio_to)
    (ours,) = torch.autograd.grad(total, logits)
    p = logits.detach().softmax(-1).numpy()
    d = np.log(p) - teacher.numpy()
    divergence = (p * d).sum()
    assert float(total.detach()) == pytest.approx(divergence, abs=1e-14)
    assert np.allclose(ours.numpy(), p * (d - divergence), rtol=0, atol=1e-14)
    (by_autograd,) = torch.autograd.grad(
        (logits.softmax(-1) * (logits.log_softmax(-1) - teacher)).sum(), logits
    )
    assert torch.allclose(ours, by_autograd, atol=1e-14)


def test_a_token_by_hand():
    """p 0.2, p_T 0.4, proximal 0.1, sampler 0.05: w = 2, r = 2, d = log(1/2); 2 (2 d - 2 + 1)."""
    batch = one_token(policy=1.0, advantage=0.0, proximal=0.5, behaviour=0.25)
    point = batch["logprobs"].clone().requires_grad_()
    taught = {"teacher_sampled": torch.tensor([[math.log(0.4)]], dtype=torch.double)}
    total, metrics = LOSS(
        point, batch["proximal"], batch["behaviour"], None, batch["mask"], settings(), **taught
    )
    d = math.log(0.5)
    assert float(total.detach()) == pytest.approx(2 * (2 * d - 1))
    (slope,) = torch.autograd.grad(total, point)
    assert float(slope) == pytest.approx(2 * 2 * d)
    assert float(metrics["distill_kl"]) == pytest.approx(d)


@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_a_teacher_that_equals_the_policy_gives_exactly_nothing(dtype):
    """The sampler's rounding of 0.06 nats is in the weight, which multiplies 0."""
    batch = {name: value.to(dtype) for name, value in random_batch(spread=0.06).items()}
    batch["proximal"] = batch["logprobs"].clone()
    batch["teacher"] = batch["logprobs"].unsqueeze(-1).repeat(1, 1, 3)
    total, metrics = run("reverse_kl", batch)
    assert float(total) == 0.0 and float(metrics["distill_kl"]) == 0.0
    assert not gradient("reverse_kl", batch).any()
    assert float(metrics["importance_kl"]) > 0


def test_the_rounding_of_the_sampler_is_no_distance_to_the_teacher():
    """The distance is that of the trainer's logprobs for any logprobs of the sampler."""
    batch = random_batch(spread=0.0)
    noise = 0.06 * torch.randn(batch["behaviour"].shape, dtype=torch.double)
    exact = run("reverse_kl", batch, settings(importance_weight="none"))[0]
    batch["behaviour"] = batch["behaviour"] + noise
    assert run("reverse_kl", batch, settings(importance_weight="none"))[0] == exact


def test_tokens_without_the_teacher_add_nothing():
    batch = random_batch()
    batch["mask"] = torch.ones_like(batch["mask"])
    whole, metrics = run("reverse_kl", batch)
    batch["teacher"][0] = MASKED_LOGPROB
    less, fewer = run("reverse_kl", batch)
    assert float(metrics["distill_share"]) == 15 and float(fewer["distill_share"]) == 10
    assert float(less) != float(whole)
    assert not gradient("reverse_kl", batch)[0].any()


def test_a_batch_without_a_teacher_is_refused_with_a_remedy():
    batch = random_batch()
    with pytest.raises(ConfigError, match="env.teacher"):
        LOSS(
            *(batch[n] for n in ("logprobs", "proximal", "behaviour")),
            None,
            batch["mask"],
            settings(),
        )

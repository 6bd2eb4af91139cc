"""Decoupled PPO on the first minibatch."""

from __future__ import annotations

import torch

from tests.trainer.loss_batches import gradient, random_batch, run, settings


def test_on_the_first_minibatch_decoupled_is_the_weighted_policy_gradient():
    """policy = proximal: -w A grad log p, the same for any clip, and dual clip."""
    batch = random_batch(spread=0.5)
    batch["proximal"] = batch["logprobs"].clone()
    weight = (batch["proximal"] - batch["behaviour"]).exp().clamp(max=1.3)
    expected = -weight * batch["advantages"] * batch["mask"]
    for fields in ({}, {"clip_eps": 0.0}, {"clip_eps": 0.9}, {"dual_clip": 1.1}):
        cfg = settings(importance_cap=1.3, **fields)
        assert torch.allclose(gradient("decoupled", batch, cfg), expected, atol=1e-12)
        _, metrics = run("decoupled", batch, cfg)
        assert float(metrics["clip_ratio"]) == float(metrics["approx_kl"]) == 0


def test_the_default_loss_is_decoupled_with_truncated_weights():
    cfg = settings()
    assert (cfg.loss, cfg.importance_weight) == ("decoupled", "truncate")


def test_the_proximal_logprobs_may_be_the_policy_s_own_not_detached():
    batch = random_batch()
    logprobs = batch["logprobs"].clone().requires_grad_()
    for name in ("ppo", "decoupled"):
        total, _ = run(name, {**batch, "logprobs": logprobs, "proximal": logprobs})
        (attached,) = torch.autograd.grad(total, logprobs)
        detached = gradient(name, {**batch, "proximal": batch["logprobs"]})
        assert torch.equal(attached, detached) and attached.any()

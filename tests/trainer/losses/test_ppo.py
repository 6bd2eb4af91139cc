"""PPO centred on the policy itself."""

from __future__ import annotations

import torch

from tests.trainer.loss_batches import gradient, random_batch, run


def test_the_proximal_logprobs_may_be_the_policy_s_own_not_detached():
    batch = random_batch()
    logprobs = batch["logprobs"].clone().requires_grad_()
    for name in ("ppo", "decoupled"):
        total, _ = run(name, {**batch, "logprobs": logprobs, "proximal": logprobs})
        (attached,) = torch.autograd.grad(total, logprobs)
        detached = gradient(name, {**batch, "proximal": batch["logprobs"]})
        assert torch.equal(attached, detached) and attached.any()

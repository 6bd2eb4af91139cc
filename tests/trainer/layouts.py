"""One step of the policy, and the same step of a padded reference with all logits."""

from __future__ import annotations

import pytest
import torch

TOLERANCE = 1e-5


def loss_of(logprobs, entropy, mask, row_ids):
    """Return a loss that is nonlinear in the logprob, with a different weight per token."""
    columns = torch.arange(logprobs.shape[1]) + 1
    weights = torch.tensor(row_ids)[:, None] * 0.3 - columns * 0.1 + 0.05
    return ((weights * (logprobs / 4).exp() - 0.02 * entropy) * mask).sum()


def reference_step(reference, rows):
    """(loss, gradients) of one padded batch with full logits."""
    longest = max(len(row.tokens) for row in rows)
    tokens = torch.tensor([row.tokens + [0] * (longest - len(row.tokens)) for row in rows])
    real = torch.tensor([[j < len(row.tokens) for j in range(longest)] for row in rows])
    logits = reference(tokens, attention_mask=real.long()).logits
    # A position predicts the next token, at the temperature of that.
    temperatures = torch.ones(len(rows), longest)
    for b, row in enumerate(rows):
        temperatures[b, row.trained] = torch.tensor(row.trained_temperatures)
    logits = logits / temperatures[:, :, None]
    everything = torch.log_softmax(logits, -1)
    shape = len(rows), max(len(row.trained) for row in rows)
    logprobs, entropy, mask = (torch.zeros(shape) for _ in range(3))
    for b, row in enumerate(rows):
        for t, j in enumerate(row.trained):
            logprobs[b, t] = everything[b, j, row.labels[j]]
            entropy[b, t] = -(everything[b, j].exp() * everything[b, j]).sum()
            mask[b, t] = 1
    loss = loss_of(logprobs, entropy, mask, range(len(rows)))
    reference.zero_grad()
    loss.backward()
    return loss.item(), {n: p.grad.clone() for n, p in reference.named_parameters()}


def our_step(policy, rows, **how):
    policy.model.zero_grad()
    total, plans = 0.0, policy.plan(rows, **how)
    for plan in plans:
        scores = policy.score(plan, entropy_grad=True)
        loss = loss_of(scores.logprobs, scores.entropy, scores.mask, plan.row_ids or [0])
        loss.backward()
        total += loss.item()
    return total, {n: p.grad.clone() for n, p in policy.model.named_parameters()}, plans


def assert_equal(ours, theirs):
    assert ours[0] == pytest.approx(theirs[0], abs=TOLERANCE)
    for name, gradient in theirs[1].items():
        assert torch.allclose(ours[1][name], gradient, atol=TOLERANCE, rtol=1e-4), name

"""The generalised Jensen-Shannon divergence against sums over a whole vocabulary."""

from __future__ import annotations

import math

import pytest
import torch

from example_trainer.losses.teachers import jsd
from example_trainer.losses.tokens import LossInputs
from example_trainer.settings.loss import LossSettings

VOCABULARY = 6


def divergence_of_all(teacher, student, beta):
    """beta KL(T || M) + (1 - beta) KL(S || M), M = beta T + (1 - beta) S, as defined."""
    mixture = beta * teacher + (1 - beta) * student

    def kl(p):
        return (torch.xlogy(p, p) - p * mixture.log()).sum(-1)

    return beta * kl(teacher) + (1 - beta) * kl(student)


def inputs(logits, ids, teacher_logprobs, mask):
    student = logits.log_softmax(-1).gather(-1, ids)
    nothing = torch.zeros(ids.shape[:2], dtype=torch.double)
    return LossInputs(
        nothing,
        nothing,
        nothing,
        nothing,
        mask,
        student_logprobs=student,
        teacher_logprobs=teacher_logprobs,
    )


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9])
def test_the_divergence_is_that_of_the_whole_vocabulary(beta):
    at = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, VOCABULARY, dtype=torch.double, generator=at).requires_grad_()
    ids = torch.tensor([[[0, 2], [1, 5], [3, 4]], [[2, 1], [0, 5], [4, 2]]])
    teacher_logprobs = -torch.rand(2, 3, 2, dtype=torch.double, generator=at)
    teacher = torch.zeros(2, 3, VOCABULARY, dtype=torch.double)
    teacher.scatter_(-1, ids, teacher_logprobs.softmax(-1))
    mask = torch.tensor([[1.0, 0.5, 0.0], [1.0, 1.0, 1.0]], dtype=torch.double)
    total, metrics = jsd.loss(
        inputs(logits, ids, teacher_logprobs, mask), LossSettings(jsd_beta=beta)
    )
    whole = divergence_of_all(teacher, logits.softmax(-1), beta)
    assert float(total.detach()) == pytest.approx(float((mask * whole).sum().detach()))
    assert float(metrics["distill_jsd"]) == pytest.approx(
        float(whole[mask > 0].sum().detach())
    )
    (ours,) = torch.autograd.grad(total, logits, retain_graph=True)
    (expected,) = torch.autograd.grad((mask * whole).sum(), logits)
    assert torch.allclose(ours, expected)


def test_two_halves_that_share_nothing_are_log_2_apart():
    """T = (1, 0), S = (0, 1), beta 1/2: M = (1/2, 1/2), and both KLs are log 2."""
    logits = torch.tensor([[[-40.0, 0.0]]], dtype=torch.double)
    found, _ = jsd.loss(
        inputs(logits, torch.tensor([[[0]]]), torch.zeros(1, 1, 1), torch.ones(1, 1)),
        LossSettings(),
    )
    assert float(found) == pytest.approx(math.log(2))

"""Distillation by hand, its gradient, and missing teacher entries."""

from __future__ import annotations

import math

import pytest
import torch

from atroposlib.errors import ConfigError
from example_trainer import losses
from example_trainer.losses.teachers.distillation import distill_sum
from tests.trainer.loss_batches import random_batch, settings

# --- distillation ---------------------------------------------------------------------------


def distill(student, teacher, mask=None, present=None, **fields):
    student = torch.tensor(student, dtype=torch.double).log()[None]
    teacher = torch.tensor(teacher, dtype=torch.double).log()[None]
    mask = torch.ones(student.shape[:2]) if mask is None else torch.tensor([mask])
    present = None if present is None else torch.tensor([present])
    return losses.get("distillation")(
        student[..., 0],
        None,
        None,
        None,
        mask,
        settings(**fields),
        student_logprobs=student,
        teacher_logprobs=teacher,
        teacher_mask=present,
    )


def test_distillation_by_hand():
    """tau 2: teacher 0.64, 0.16 -> 0.8, 0.4 -> 2/3, 1/3; student log 1/2, log 1/4.

    4 (2/3 log 2 + 1/3 log 4) = 16/3 log 2; less the entropy of the teacher, 4 x 0.6365.
    """
    loss, metrics = distill([[0.5, 0.25]], [[0.64, 0.16]], distill_temperature=2.0)
    assert float(loss) == pytest.approx(16 / 3 * math.log(2))
    entropy = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    assert float(metrics["distill_kl"]) == pytest.approx(16 / 3 * math.log(2) - 4 * entropy)
    assert int(metrics["distill_share"]) == 1


def test_a_student_that_agrees_has_no_divergence():
    _, metrics = distill([[0.75, 0.25]], [[0.3, 0.1]])  # the teacher is renormalised over K
    assert float(metrics["distill_kl"]) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("tau", [1.0, 2.0])
def test_the_gradient_on_logits_is_student_minus_teacher_times_tau(tau):
    logits = torch.randn(1, 2, 4, dtype=torch.double, requires_grad=True)
    teacher = torch.randn(1, 2, 4, dtype=torch.double).log_softmax(-1)
    loss = distill_sum(
        (logits / tau).log_softmax(-1),
        teacher,
        torch.ones(1, 2),
        None,
        tau,
    )
    (found,) = torch.autograd.grad(loss, logits)
    expected = tau * ((logits / tau).softmax(-1) - (teacher / tau).softmax(-1))
    assert torch.allclose(found, expected.detach())


def test_a_divergence_is_a_loss_and_teaches_nothing_as_an_advantage():
    """A divergence of the whole position is the same number for every token sampled there.

    As an advantage it is a constant, and over all tokens that the policy may sample p(v) times the
    gradient of log p(v) adds up to 0. As the loss its gradient is student - teacher.
    """
    logits = torch.tensor([0.3, -1.0, 0.8, 0.1], dtype=torch.double, requires_grad=True)
    student = logits.log_softmax(-1)
    teacher = torch.tensor([0.6, 0.2, 0.1, 0.1], dtype=torch.double).log()
    divergence = float((teacher.exp() * (teacher - student.detach())).sum())
    assert divergence > 0.3
    vocabulary = len(student)
    loss_sum, _ = losses.get("reinforce")(
        student[:, None],
        student.detach()[:, None],
        student.detach()[:, None],
        torch.full((vocabulary, 1), -divergence, dtype=torch.double),
        student.detach().exp()[:, None],  # each token as often as the policy samples it
        settings(importance_weight="none"),
    )
    (as_advantage,) = torch.autograd.grad(loss_sum, logits, retain_graph=True)
    assert as_advantage.abs().max() < 1e-12
    as_loss = distill_sum(
        student[None, None], teacher[None, None], torch.ones(1, 1), None, 1.0
    )
    (gradient,) = torch.autograd.grad(as_loss, logits)
    assert torch.allclose(gradient, student.detach().exp() - teacher.exp())
    assert gradient.abs().max() > 0.2


def test_positions_without_teacher_entries_add_nothing():
    """Of three trained tokens one has both entries, one a single one, one none at all."""
    nan = float("nan")
    student = [[0.5, 0.25], [0.5, nan], [nan, nan], [nan, nan]]
    teacher = [[0.5, 0.5], [0.9, nan], [nan, nan], [0.5, 0.5]]
    present = [[True, True], [True, False], [False, False], [True, True]]
    loss, metrics = distill(student, teacher, [1.0, 1.0, 1.0, 0.0], present)
    assert float(loss) == pytest.approx(
        -0.5 * math.log(0.5) - 0.5 * math.log(0.25) + math.log(2)
    )
    assert int(metrics["distill_share"]) == 2


def test_tokens_of_teacher_probability_zero_add_nothing():
    loss, _ = distill([[0.5, 0.0]], [[0.5, 0.0]])
    assert float(loss) == pytest.approx(math.log(2))


def test_a_batch_without_any_entry_of_a_teacher_is_zero():
    student = torch.zeros(2, 3, 0, requires_grad=True)
    loss = distill_sum(student, torch.zeros(2, 3, 0), torch.ones(2, 3), None, 1.0)
    loss.backward()
    assert float(loss.detach()) == 0.0


def test_distillation_without_a_teacher_is_refused_with_a_remedy():
    batch = random_batch()
    with pytest.raises(ConfigError, match="TeacherDistillationEnv"):
        losses.get("distillation")(
            batch["logprobs"], None, None, None, batch["mask"], settings()
        )

"""Divergences over K tokens and the rest: by hand in numpy, and of a whole vocabulary by autograd."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from example_trainer import losses
from example_trainer.losses.teachers.rest_mass import FLOOR, teacher_outcomes
from example_trainer.losses.tokens import LossInputs
from example_trainer.settings.loss import LossSettings

VOCABULARY = 6


def inputs(student, teacher, mask=None, present=None):
    """LossInputs of (B, T, K) logprobs."""
    nothing = torch.zeros(student.shape[:2], dtype=student.dtype)
    mask = torch.ones_like(nothing) if mask is None else mask
    return LossInputs(
        nothing,
        nothing,
        nothing,
        nothing,
        mask,
        student_logprobs=student,
        teacher_logprobs=teacher,
        teacher_mask=present,
    )


def random_logits(seed, *shape, scale=2.0):
    at = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, dtype=torch.double, generator=at)


def loss_of(name, student, teacher, **fields):
    cfg = LossSettings(distill_rest="bucket", **fields)
    return losses.formula(name)(inputs(student, teacher), cfg)


def gradient_by_hand(name, logits, teacher, ids, tau, beta):
    """The gradient by the logits of a position: numpy, float64, from formulas written out.

    With outcomes c(v) of the tokens v, p the student, s its tempered outcomes:
    d log s(j) / d z(v) = (1/tau) (d log P(j) / d z(v) - sum_i s(i) d log P(i) / d z(v)),
    where P(j) is the student's probability of an outcome and
    d log P(j) / d z(v) = [v in j] p(v) / P(j) - p(v). The last term cancels.
    """
    p = np.exp(logits - logits.max())
    p /= p.sum()
    outcome_of = np.full(len(p), len(ids))
    outcome_of[ids] = np.arange(len(ids))
    whole = np.bincount(outcome_of, weights=p, minlength=len(ids) + 1)
    t = np.append(np.exp(teacher[ids]), 1 - np.exp(teacher[ids]).sum())
    s, t = whole ** (1 / tau), t ** (1 / tau)
    s, t = s / s.sum(), t / t.sum()
    if name == "distillation":
        by_s = -t / s
    else:
        m = beta * t + (1 - beta) * s
        by_s = (1 - beta) * np.log(s / m)
    # by_s is the derivative of the divergence by s, but for a constant, which has no effect.
    by_log_s = s * by_s - s * (s * by_s).sum()
    by_hand = [by_log_s[outcome_of[v]] * p[v] / whole[outcome_of[v]] for v in range(len(p))]
    return tau**2 * np.array(by_hand) / tau


@pytest.mark.parametrize("tau", [1.0, 2.0, 0.7])
@pytest.mark.parametrize(("name", "beta"), [("distillation", 0.5), ("jsd", 0.5), ("jsd", 0.2)])
def test_the_gradient_is_that_derived_by_hand(name, beta, tau):
    ids = [4, 1, 3]
    logits = random_logits(1, VOCABULARY).requires_grad_()
    teacher = random_logits(2, VOCABULARY).log_softmax(-1)
    student = logits.log_softmax(-1)[ids][None, None]
    total, _ = loss_of(
        name, student, teacher[ids][None, None], distill_temperature=tau, jsd_beta=beta
    )
    (ours,) = torch.autograd.grad(total, logits)
    numbers = logits.detach().numpy(), teacher.numpy()
    by_hand = gradient_by_hand(name, *numbers, np.array(ids), tau, beta)
    assert np.allclose(ours.numpy(), by_hand, rtol=0, atol=1e-13)
    assert np.abs(by_hand).max() > 0.01


def test_forward_kl_by_hand():
    """Teacher 1/2, 1/4, rest 1/4; student 1/4, 1/4, rest 1/2: 1/2 log 2 + 0 - 1/4 log 2."""
    student, teacher = (
        torch.tensor([[[0.25, 0.25]]]).log(),
        torch.tensor([[[0.5, 0.25]]]).log(),
    )
    total, metrics = loss_of("distillation", student, teacher)
    assert float(total) == pytest.approx(0.25 * math.log(2), abs=1e-7)
    assert float(metrics["distill_kl"]) == float(total) and int(metrics["distill_share"]) == 1


def test_a_temperature_by_hand():
    """tau 2 of 0.64, 0.36: 0.8, 0.6 -> 4/7, 3/7; student 0.36, 0.64 -> 3/7, 4/7; 4/7 log(4/3)."""
    student, teacher = torch.tensor([[[0.36]]]).double(), torch.tensor([[[0.64]]]).double()
    total, _ = loss_of("distillation", student.log(), teacher.log(), distill_temperature=2.0)
    assert float(total) == pytest.approx(4 / 7 * math.log(4 / 3))


@pytest.mark.parametrize("tau", [1.0, 2.0])
@pytest.mark.parametrize("name", ["distillation", "jsd"])
def test_with_all_tokens_value_and_gradient_are_those_of_the_whole_vocabulary(name, tau):
    logits = random_logits(3, 2, 3, VOCABULARY).requires_grad_()
    teacher = random_logits(4, 2, 3, VOCABULARY).log_softmax(-1)
    total, _ = loss_of(name, logits.log_softmax(-1), teacher, distill_temperature=tau)
    s, t = (logits / tau).log_softmax(-1), (teacher / tau).log_softmax(-1)
    if name == "distillation":
        whole = t.exp() * (t - s)
    else:
        m = (t.exp() + s.exp()).log() - math.log(2)
        whole = 0.5 * (t.exp() * (t - m) + s.exp() * (s - m))
    whole = tau**2 * whole.sum()
    assert float(total.detach()) == pytest.approx(float(whole.detach()), abs=1e-12)
    (ours,) = torch.autograd.grad(total, logits, retain_graph=True)
    (expected,) = torch.autograd.grad(whole, logits)
    assert torch.allclose(ours, expected, atol=1e-12)


@given(
    st.integers(0, 10**6),
    st.integers(1, VOCABULARY - 1),
    st.sampled_from(["distillation", "jsd"]),
)
def test_merging_the_rest_never_raises_the_divergence(seed, count, name):
    student, teacher = random_logits(seed, 2, 1, 1, VOCABULARY).log_softmax(-1)
    some, _ = loss_of(name, student[..., :count], teacher[..., :count])
    every, _ = loss_of(name, student, teacher)
    assert -1e-12 <= float(some) <= float(every) + 1e-12


@pytest.mark.parametrize("tau", [1.0, 2.0])
@pytest.mark.parametrize("name", ["distillation", "jsd"])
@pytest.mark.parametrize(("dtype", "noise"), [(torch.double, 1e-14), (torch.float, 1e-7)])
def test_a_teacher_that_equals_the_student_gives_no_loss_and_no_gradient(
    name, tau, dtype, noise
):
    logits = random_logits(5, 4, 8, 50).to(dtype).requires_grad_()
    student = logits.log_softmax(-1)[..., :8]
    total, _ = loss_of(name, student, student.detach(), distill_temperature=tau)
    (slope,) = torch.autograd.grad(total, logits)
    assert abs(float(total.detach())) <= noise
    if name == "distillation":
        assert float(total.detach()) == 0.0
    assert float(slope.abs().max()) <= noise


def test_a_teacher_that_equals_the_student_has_a_gradient_if_its_rest_is_given_away():
    logits = random_logits(5, 1, 1, 50).requires_grad_()
    student = logits.log_softmax(-1)[..., :4]
    total, _ = losses.formula("distillation")(
        inputs(student, student.detach()), LossSettings()
    )
    (slope,) = torch.autograd.grad(total, logits)
    assert float(slope.abs().max()) > 0.01


@pytest.mark.parametrize("name", ["distillation", "jsd"])
def test_a_rest_that_rounding_made_is_no_signal(name):
    """float32 probabilities of all tokens add up to 1 but for some 1e-7."""
    logits = random_logits(6, 20, 20, 40).float().requires_grad_()
    student = logits.log_softmax(-1)
    teacher = (student.detach() + 3e-8).float()
    total, _ = loss_of(name, student, teacher, distill_temperature=2.0)
    (slope,) = torch.autograd.grad(total, logits)
    assert abs(float(total.detach())) < 400 * 1e-6 and float(slope.abs().max()) < 1e-6


@pytest.mark.parametrize("name", ["distillation", "jsd"])
def test_a_student_without_a_rest_learns_to_give_it_something(name):
    """The teacher's rest is 0.3, the student's 1e-9, too small for float32."""
    logits = torch.tensor([[[0.0, 0.0, -20.0]]], requires_grad=True)
    student = logits.log_softmax(-1)[..., :2]
    teacher = torch.tensor([[[0.35, 0.35]]]).log()
    total, _ = loss_of(name, student, teacher)
    (slope,) = torch.autograd.grad(total, logits)
    assert torch.isfinite(total) and torch.isfinite(slope).all()
    assert slope[0, 0, 2] < 0 and float(slope.abs().max()) < 1.0
    assert float(1 - student.detach().double().exp().sum()) < FLOOR


def test_tokens_without_entries_and_untrained_tokens_add_nothing():
    nan = float("nan")
    student = torch.tensor([[[0.5, 0.25], [0.5, nan], [nan, nan], [nan, nan]]]).log()
    teacher = torch.tensor([[[0.5, 0.25], [0.7, nan], [nan, nan], [0.5, 0.5]]]).log()
    present = torch.tensor([[[True, True], [True, False], [False, False], [True, True]]])
    batch = inputs(student, teacher, torch.tensor([[1.0, 1.0, 1.0, 0.0]]), present)
    of_both = teacher_outcomes(batch, student, teacher, 1.0)
    expected = 0.7 * math.log(0.7 / 0.5) + 0.3 * math.log(0.3 / 0.5)
    assert of_both.forward_kl()[0].tolist() == pytest.approx(
        [0.0, expected, 0.0, 0.0], abs=1e-7
    )
    assert of_both.has_teacher[0].tolist() == [True, True, False, False]


def test_a_token_that_the_teacher_rules_out_counts_in_the_students_part_only():
    """Teacher 0.5, 0, rest 0.5; student 0.25, 0.25, rest 0.5: KL(t || s) is 1/2 log 2."""
    student, teacher = torch.tensor([[[0.25, 0.25]]]).log(), torch.tensor([[[0.5, 0.0]]]).log()
    total, _ = loss_of("distillation", student, teacher)
    assert float(total) == pytest.approx(0.5 * math.log(2), abs=1e-7)
    t, s = np.array([0.5, 1e-300, 0.5]), np.array([0.25, 0.25, 0.5])
    m = (t + s) / 2
    expected = 0.5 * (t * np.log(t / m)).sum() + 0.5 * (s * np.log(s / m)).sum()
    jensen_shannon, _ = loss_of("jsd", student, teacher)
    assert float(jensen_shannon) == pytest.approx(expected, abs=1e-7)

"""Divergences of a student and a teacher of which only the K likeliest tokens are known.

All tokens outside of the K tokens are together a further outcome, the rest:

    t = (p_T(1) ... p_T(K), 1 - sum)         of the teacher
    s = (p_S(1) ... p_S(K), 1 - sum)         of the student at temperature 1
    t, s <- t^(1/tau), s^(1/tau), each divided by its sum                   tau: distill_temperature

    forward KL       sum over K + 1 outcomes of t log(t / s)
    Jensen-Shannon   beta KL(t || m) + (1 - beta) KL(s || m), m = beta t + (1 - beta) s

Merging outcomes never raises a divergence: each is a lower bound of the divergence of the whole
vocabulary, equal to it where K is all of it, and 0 exactly where s = t. A student that equals the
teacher has no gradient, which is not so if p_T is renormalised over the K tokens: then the student
is drawn to give nothing to the rest. How the student divides the rest among its tokens is free.

1 - sum is known to the rounding of the logprobs, about 1e-7. So a rest below ``floor`` is empty; a
student's rest below it counts as ``floor`` where the teacher's is not empty, and keeps its gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from example_trainer.losses.tokens import LossInputs, at_least_float32

FLOOR = 1e-6  # float32 keeps a logprob to 1e-7
FLOOR_FLOAT64 = 1e-13


@dataclass(frozen=True)
class Outcomes:
    """Log probabilities of K tokens and of the rest, (B, T, K + 1) each, in float64.

    Entries that do not exist are 0 in all three.
    """

    teacher: Tensor  # it has no gradient
    student: Tensor
    exists: Tensor  # bool: the student may give this outcome a probability
    is_taught: Tensor  # bool: the teacher gives this outcome a probability

    @property
    def has_teacher(self) -> Tensor:
        """(B, T) whether a token has an entry of the teacher."""
        return self.is_taught[..., :-1].any(-1)

    def forward_kl(self) -> Tensor:
        """(B, T) KL(t || s)."""
        share = torch.where(self.is_taught, self.teacher.exp(), 0.0)
        return (share * (self.teacher - self.student)).sum(-1)

    def jensen_shannon(self, beta: float) -> Tensor:
        """(B, T) beta KL(t || m) + (1 - beta) KL(s || m)."""
        ours = self.student + math.log1p(-beta)
        both = torch.logaddexp(self.teacher + math.log(beta), ours)
        mixture = torch.where(self.is_taught, both, ours)
        of_teacher = torch.where(self.is_taught, self.teacher.exp(), 0.0)
        of_student = torch.where(self.exists, self.student.exp(), 0.0)
        to_teacher = (of_teacher * (self.teacher - mixture)).sum(-1)
        to_student = (of_student * (self.student - mixture)).sum(-1)
        return beta * to_teacher + (1 - beta) * to_student


def teacher_outcomes(
    batch: LossInputs, student: Tensor, teacher: Tensor, tau: float
) -> Outcomes:
    """The outcomes of every token; ``student`` and ``teacher`` are (B, T, K) logprobs."""
    floor = FLOOR_FLOAT64 if at_least_float32(student).dtype == torch.float64 else FLOOR
    there = batch.tokens.trained.unsqueeze(-1).expand(teacher.shape)
    if batch.teacher_mask is not None:
        there = there & (batch.teacher_mask != 0)
    is_given = there & ~torch.isneginf(teacher)  # -inf: ruled out by the teacher
    theirs = torch.where(is_given, teacher.double(), 0.0)
    is_held = there & (is_given | ~torch.isneginf(student))
    ours = torch.where(is_held, student.double(), 0.0)
    rest_of_teacher = 1 - torch.where(is_given, theirs.exp(), 0.0).sum(-1, keepdim=True)
    rest = 1 - torch.where(is_held, ours.exp(), 0.0).sum(-1, keepdim=True)
    has_entry = there.any(-1, keepdim=True)
    # Written so that a NaN counts as present and makes the loss NaN.
    rest_is_taught = has_entry & ~(rest_of_teacher < floor)
    rest_exists = has_entry & (rest_is_taught | ~(rest < floor))
    bounded = torch.where(rest < floor, rest + (floor - rest).detach(), rest)
    # 1 where there is no rest, before the logarithm: 0 x inf would be NaN.
    log_rest = torch.where(rest_exists, bounded, 1.0).log()
    log_theirs = torch.where(rest_is_taught, rest_of_teacher, 1.0).log()
    is_taught = torch.cat([is_given, rest_is_taught], -1)
    exists = torch.cat([is_held, rest_exists], -1)
    with torch.no_grad():
        given = _tempered(torch.cat([theirs, log_theirs], -1), is_taught, tau)
    return Outcomes(
        given, _tempered(torch.cat([ours, log_rest], -1), exists, tau), exists, is_taught
    )


def _tempered(logprobs: Tensor, exists: Tensor, tau: float) -> Tensor:
    """log(p^(1/tau) / sum), 0 in entries that do not exist."""
    scaled = torch.where(exists, logprobs / tau, -torch.inf)
    # Where a token has no entry this is 0 / 0, and replaced right away.
    some = exists.any(-1, keepdim=True)
    scaled = torch.where(some, scaled, 0.0)
    return torch.where(exists, scaled.log_softmax(-1), 0.0)

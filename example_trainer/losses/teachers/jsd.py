"""Generalised Jensen-Shannon divergence to a teacher's K likeliest tokens, arXiv 2306.13649.

    p_T = softmax over the K entries of (q / tau)            q: the teacher's logprobs
    p_S = softmax over the vocabulary of (student logits / tau)
    M = beta p_T + (1 - beta) p_S
    L = tau^2 sum m (beta KL(p_T || M) + (1 - beta) KL(p_S || M))       m: weight of a token

beta is jsd_beta, between 0 and 1. A small beta covers all that the teacher would sample, as
forward KL (``distillation``); a large beta keeps to its likeliest tokens, as reverse KL. The
divergence is at most log 2 for beta 1/2, so that no token takes over a step. Where p_T is 0,
outside of the K entries, M is (1 - beta) p_S, and these tokens together give
-p_S(rest) log(1 - beta): nothing of the vocabulary is left out.

With ``distill_rest bucket`` the divergence is that of ``rest_mass``, in which the teacher's
probability outside of the K entries is kept.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from example_trainer.losses.teachers.distillation import require_teacher, teacher_shares
from example_trainer.losses.teachers.rest_mass import teacher_outcomes
from example_trainer.losses.tokens import LossInputs, at_least_float32
from example_trainer.settings.loss import LossSettings


def loss(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """Sum over tokens of the divergence, and token sums of its metrics.

    Raises:
        ConfigError: the batch has no teacher.
    """
    student, teacher = require_teacher(batch)
    tau, beta, tokens = settings.distill_temperature, settings.jsd_beta, batch.tokens
    if settings.distill_rest == "bucket":
        of_both = teacher_outcomes(batch, student, teacher, tau)
        divergence = tau**2 * of_both.jensen_shannon(beta)
        return tokens.loss_sum(divergence), {
            "distill_jsd": tokens.total(divergence),
            "distill_share": tokens.total(of_both.has_teacher),
        }
    share, log_share = teacher_shares(teacher, tokens.trained, batch.teacher_mask, tau)
    is_entry = share != 0
    # 0 where there is no entry, before anything is computed: 0 x inf would be NaN.
    log_student = torch.where(is_entry, at_least_float32(student), 0.0)
    log_mixture = torch.logaddexp(log_share + math.log(beta), log_student + math.log1p(-beta))
    student_share = torch.where(is_entry, log_student.exp(), 0.0)
    of_teacher = share * (log_share - log_mixture)
    of_student = student_share * (log_student - log_mixture)
    rest = 1 - student_share.sum(-1)
    divergence = beta * of_teacher.sum(-1) + (1 - beta) * (
        of_student.sum(-1) - rest * math.log1p(-beta)
    )
    has_teacher = is_entry.any(-1)
    divergence = torch.where(has_teacher, tau**2 * divergence, 0.0)
    return tokens.loss_sum(divergence), {
        "distill_jsd": tokens.total(divergence),
        "distill_share": tokens.total(has_teacher),
    }

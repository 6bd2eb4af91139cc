"""Distillation from the K likeliest tokens of a teacher (Hinton et al., arXiv 1503.02531).

    p_T = softmax over the K entries of (q / tau)            q: the teacher's logprobs
    p_S = softmax over the vocabulary of (student logits / tau)
    L = -tau^2 sum m sum_k p_T(k) log p_S(k)                 m: weight of a token

tau is distill_temperature. The gradient on the student's logits is that of
KL(p_T || p_S) x tau^2, which keeps its size for any tau. The student is not renormalised over
the K entries, so probability that it gives to other tokens costs as well. Trained tokens
without an entry of the teacher add nothing but count in the divisor.

With ``distill_rest bucket`` the loss is tau^2 KL(t || s) of ``rest_mass``: the teacher's
probability outside of the K entries is kept, and a student that equals the teacher stays as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atroposlib.errors import ConfigError
from example_trainer.losses.teachers.rest_mass import teacher_outcomes
from example_trainer.losses.tokens import LossInputs, TokenMask, at_least_float32
from example_trainer.settings.loss import LossSettings


def loss(batch: LossInputs, settings: LossSettings) -> tuple[Tensor, dict[str, Tensor]]:
    """``distill_sum`` as the only loss; distill_coef is not used.

    Metrics: ``distill_kl``, KL(p_T || p_S) x tau^2 of the K entries, which falls to 0 as the
    student agrees; ``distill_share``, trained tokens that have an entry of the teacher.

    Raises:
        ConfigError: the batch has no teacher.
    """
    student, teacher = require_teacher(batch)
    tau, tokens = settings.distill_temperature, batch.tokens
    if settings.distill_rest == "bucket":
        of_both = teacher_outcomes(batch, student, teacher, tau)
        divergence = tau**2 * of_both.forward_kl()
        return tokens.loss_sum(divergence), {
            "distill_kl": tokens.total(divergence),
            "distill_share": tokens.total(of_both.has_teacher),
        }
    share, log_share = teacher_shares(teacher, tokens.trained, batch.teacher_mask, tau)
    gap = share * (log_share - _where_shared(share, student))
    return distill_sum(student, teacher, batch.loss_mask, batch.teacher_mask, tau), {
        "distill_kl": tokens.total(tau**2 * gap.sum(-1)),
        "distill_share": tokens.total((share != 0).any(-1)),
    }


def require_teacher(batch: LossInputs) -> tuple[Tensor, Tensor]:
    """Logprobs of student and teacher at the teacher's tokens, (B, T, K) each.

    Raises:
        ConfigError: the batch has no teacher; names the environment that sends its tokens.
    """
    student, teacher = batch.student_logprobs, batch.teacher_logprobs
    if student is None or teacher is None:
        raise ConfigError(
            "the losses distillation and jsd need the teacher's tokens and logprobs with every"
            " group: distill_token_ids and distill_logprobs. Name a teacher in the settings of the"
            " environment (env.teacher, or a TeacherDistillationEnv), or choose another loss"
        )
    return student, teacher


def distill_sum(
    student_logprobs: Tensor,  # (B, T, K) log_softmax(logits / tau) at the teacher's ids
    teacher_logprobs: Tensor,  # (B, T, K) as sent; divided by tau here
    mask: Tensor,  # (B, T) weight of each token; 0 where not trained
    K_mask: Tensor | None,  # (B, T, K) which entries there are; None: all
    tau: float,
) -> Tensor:
    """Sum over tokens of the distillation loss; distill_coef is left to the caller."""
    share, _ = teacher_shares(teacher_logprobs, mask, K_mask, tau)
    student = _where_shared(share, student_logprobs)
    return TokenMask.of(mask).loss_sum(-(tau**2) * (share * student).sum(-1))


@torch.no_grad()
def teacher_shares(
    teacher_logprobs: Tensor, mask: Tensor, K_mask: Tensor | None, tau: float
) -> tuple[Tensor, Tensor]:
    """p_T and log p_T, (B, T, K): 0 in entries that are not there or not trained."""
    there = (mask != 0).unsqueeze(-1).expand(teacher_logprobs.shape)
    if K_mask is not None:
        there = there & (K_mask != 0)
    scaled = torch.where(there, at_least_float32(teacher_logprobs) / tau, -torch.inf)
    there = there & ~torch.isneginf(scaled)  # -inf: ruled out by the teacher
    # Where a token has no entry this is 0 / 0, and replaced right away.
    log_share = torch.where(there, scaled.log_softmax(-1), 0.0)
    return torch.where(there, log_share.exp(), 0.0), log_share


def _where_shared(share: Tensor, student_logprobs: Tensor) -> Tensor:
    """The student's logprobs, 0 where the teacher gives nothing: there they may be -inf."""
    return torch.where(share != 0, at_least_float32(student_logprobs), 0.0)

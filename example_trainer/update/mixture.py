"""The loss of a minibatch as the sum of the losses of its environments.

    L = sum over parts of  share x (sum over the part's rows of its loss) / (its own divisor)

A part is the rows of an environment that has an algorithm, or the rest. The loss of a part sees a
micro-batch with the tokens of all further rows masked, and masked tokens add exactly 0 to a sum. Share
and divisor belong to the whole minibatch on all ranks, so that L and its gradient are the same for
any packing, any order of rows, any micro-batches and any number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from example_trainer import losses
from example_trainer.data.rows import Row, loss_weights
from example_trainer.losses import kl
from example_trainer.losses.tokens import LossInputs
from example_trainer.model.policy import Scores
from example_trainer.settings.algorithms import BatchPart, mixing_of, parts_of, shares_of
from example_trainer.settings.loss import ObjectiveSettings
from example_trainer.update import top_entropy
from example_trainer.update.step_metrics import StepMetrics

V = TypeVar("V")


def loss_parts(
    settings: ObjectiveSettings, rows: Sequence[Row], seq_len: int
) -> list[LossPart]:
    """The parts of a minibatch with their divisors; ``seq_len`` is the default of Dr. GRPO's."""
    parts = parts_of(settings, [row.environment for row in rows])
    shares = shares_of(parts, [len(row.trained) for row in rows], mixing_of(settings))
    return [LossPart(part, rows, share, seq_len) for part, share in zip(parts, shares)]


class LossPart:
    """The rows of a minibatch that have the same algorithm, and their loss.

    Args:
        rows: of the minibatch.
        share: factor of the part's own loss in that of the minibatch.
    """

    def __init__(
        self, part: BatchPart, rows: Sequence[Row], share: float, seq_len: int
    ) -> None:
        self.name, self.settings, self.places = part.name, part.settings, part.places
        self.share = share
        self._rows, self._members = self.pick(rows), set(part.places)
        self._loss_of = losses.formula(part.settings.loss)
        self._weights_R, own_divisor = loss_weights(
            self._rows,
            part.settings.loss_aggregation,
            part.settings.aggregation_length or seq_len,
        )
        self.divisor = own_divisor / share  # factor of the sum in the loss of the minibatch

    @property
    def needs_candidates(self) -> bool:
        """Whether the policy is scored at the teacher's likeliest tokens."""
        return bool(losses.teacher_losses(self.settings) & losses.OF_CANDIDATES)

    @property
    def needs_teacher_sampled(self) -> bool:
        """Whether the teacher's logprobs of the sampled tokens are read."""
        return bool(losses.teacher_losses(self.settings) & losses.OF_SAMPLED)

    @property
    def candidate_temperature(self) -> float:
        """The temperature at which the policy is scored at the teacher's tokens."""
        # A rest is known at temperature 1 only: the loss softens it.
        is_coarse = self.settings.distill_rest == "bucket"
        return 1.0 if is_coarse else self.settings.distill_temperature

    def pick(self, values_R: Sequence[V]) -> list[V]:
        """The entries of the part's rows."""
        return [values_R[place] for place in self.places]

    def weights(self, entropies_R_T: Sequence[Sequence[float]] | None) -> list[list[float]]:
        """Weight of every trained token of the part's rows; 0 where its entropy is too low."""
        weights_R_T = [[w] * len(r.trained) for w, r in zip(self._weights_R, self._rows)]
        share = self.settings.entropy_share
        if share == 1.0 or entropies_R_T is None:
            return weights_R_T
        kept_R_T = top_entropy.keep_top(self.pick(entropies_R_T), share)
        return [
            [w if is_kept else 0.0 for w, is_kept in zip(weights_T, kept_T)]
            for weights_T, kept_T in zip(weights_R_T, kept_R_T)
        ]

    def metrics(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The values under the name of the environment; nothing for the only algorithm."""
        if self.name is None:
            return {}
        return {f"{metric}/{self.name}": value for metric, value in values.items()}

    def add_loss(
        self,
        row_ids: Sequence[int],
        whole: LossInputs,
        scores: Scores,
        reference: Tensor | None,
        sums: StepMetrics,
    ) -> Tensor:
        """The sum of the losses of this part's tokens in a micro-batch; metrics go to ``sums``."""
        weights, scored = whole.loss_mask, scores.mask
        if self.name is not None:
            is_member = [[row in self._members] for row in row_ids] or [[False]]
            members = torch.tensor(is_member, device=scored.device)  # (B, 1)
            weights, scored = torch.where(members, weights, 0.0), scored & members
        # A token without enough entropy has no weight, and belongs to its sequence all the same.
        batch = replace(whole, loss_mask=weights, trained=scored)
        loss_sum, metrics = self._loss_of(batch, self.settings)
        regularisers, kl_metric = self._regularisers(scores, batch, reference, scored)
        loss_sum = loss_sum + regularisers
        metrics = {**metrics, **kl_metric}
        if (added := losses.added_loss(self.settings)) is not None:
            distilled, distilled_once = self._distillation_terms(added, batch, scored)
            loss_sum = loss_sum + self.settings.distill_coef * distilled
            metrics = {**metrics, "distill_loss": distilled_once}
        sums.add({**metrics, **self.metrics(metrics)}, scored.sum())
        return loss_sum

    def _regularisers(
        self, scores: Scores, batch: LossInputs, reference: Tensor | None, scored: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Entropy bonus and KL to the reference, summed like the loss; the KL of an environment."""
        settings, weights = self.settings, batch.loss_mask
        total = weights.new_zeros(())
        if settings.entropy_coef > 0:
            total = total - settings.entropy_coef * (weights * scores.entropy).sum()
        if reference is None or settings.kl_in != "loss" or settings.kl_coef == 0:
            return total, {}
        sampler = batch.behaviour_logprobs if settings.kl_bias_correction else None
        penalty = kl.penalty(
            scores.logprobs, reference, settings.kl_estimator, weights, sampler
        )
        total = total + settings.kl_coef * (weights * penalty).sum()
        once = torch.where(scored, penalty.detach(), 0.0).sum()
        return total, {} if self.name is None else {"kl_reference": once}

    def _distillation_terms(
        self, name: str, batch: LossInputs, scored: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The loss ``name`` of a teacher, and the same with every token counting once."""
        divergence = losses.formula(name)
        loss_sum, _ = divergence(batch, self.settings)
        with torch.no_grad():
            once, _ = divergence(replace(batch, loss_mask=scored.float()), self.settings)
        return loss_sum, once

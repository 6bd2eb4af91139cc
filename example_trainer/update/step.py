"""One batch -> optimizer steps.

    for each minibatch                      one optimizer step
        for each pass                       one forward and backward, bounded memory
            score -> loss sum / divisor -> backward
        clip, step

The divisor belongs to the whole minibatch, over all ranks, and a loss is a sum: so the
gradient is the same for any packing, any number of passes and any number of ranks.

Letters: B rows of a pass, T trained tokens of its longest row, K teacher candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atroposlib.wire import MASKED_VERSION
from example_trainer import losses
from example_trainer.advantage.prepare import Prepared, minibatches, part_of
from example_trainer.data import rows as data
from example_trainer.data.packing import Pass
from example_trainer.data.rows import at_trained
from example_trainer.losses import distillation, kl, value
from example_trainer.model.critic import ValueModel
from example_trainer.model.model_dir import TrainerState
from example_trainer.model.policy import Policy, Scores
from example_trainer.settings.config import TrainingConfig
from example_trainer.state.stop import StopSignal
from example_trainer.update import optimizer as optim
from example_trainer.update.pad import over_ranks, sampled_mismatch, spread, spread_teacher
from example_trainer.update.step_metrics import (
    Sums,
    add_logprobs,
    device_memory,
    with_deviations,
)
from example_trainer.weights import verify
from example_trainer.weights.verify import Mismatch

Optimizer = torch.optim.Optimizer


@dataclass
class Critic:
    """The value model and its optimizer."""

    model: ValueModel
    optimizer: Optimizer


def learn(
    cfg: TrainingConfig,
    policy: Policy,
    optimizer: Optimizer,
    prepared: Prepared,
    state: TrainerState,
    stop: StopSignal,
    critic: Critic | None = None,
) -> dict[str, float]:
    """Take ``minibatches x epochs_per_batch`` optimizer steps; metrics over all of them.

    Raises:
        StaleWeights: tokens of the version held here have other logprobs than here.
        Stopped: between two passes; the step is not taken.
    """
    parts = minibatches(prepared.rows, cfg.minibatches)
    proximal_R_T = _proximal(cfg, policy, prepared, parts)
    sums, norms, skipped = Sums(), [], 0
    for epoch in range(cfg.epochs_per_batch):
        for number, indices in enumerate(parts):
            first = epoch == 0 and number == 0
            update = _Update(cfg, policy, part_of(prepared, indices), state, stop, first)
            if proximal_R_T is not None and not first:
                update.proximal_R_T = [proximal_R_T[i] for i in indices]
            update.accumulate(sums)
            if len(parts) == 1 and first:
                proximal_R_T = update.own_R_T
            norm, stepped = optim.step(optimizer, policy, cfg, state.step)
            norms.append(norm)
            skipped += not stepped
            if critic is not None:
                _step_critic(cfg, critic, update.prepared, state.step, sums)
    sums.share(policy.world)
    return {
        **with_deviations(sums.means()),
        **device_memory(policy.device),
        "packed_tokens": sums.total("packed_tokens"),
        "lr": optimizer.param_groups[0]["lr"],
        "grad_norm": norms[-1] if norms else 0.0,
        "optimizer_steps": len(norms) - skipped,
        "updates_skipped": skipped,
    }


def _proximal(
    cfg: TrainingConfig, policy: Policy, prepared: Prepared, parts: Sequence[Sequence[int]]
) -> list[list[float]] | None:
    """Logprobs of the policy before this batch; None where a forward of their own is spared.

    In the first update the policy being trained is the proximal one, so its own detached
    logprobs serve, exactly: the ratio is 1 and only its gradient matters. With one
    minibatch they also serve the epochs after it.
    """
    if len(parts) == 1 or not losses.needs_proximal(cfg.loss):
        return None
    return policy.trained_logprobs(prepared.rows)


class _Update:
    """One optimizer step's worth of rows."""

    def __init__(
        self,
        cfg: TrainingConfig,
        policy: Policy,
        prepared: Prepared,
        state: TrainerState,
        stop: StopSignal,
        first: bool,
    ) -> None:
        self.cfg, self.policy, self.prepared = cfg, policy, prepared
        self.state, self.stop, self.first = state, stop, first
        self.proximal_R_T: list[list[float]] | None = None  # None: the policy's own
        # Of rows that this rank scored, before the step; other ranks' rows stay empty.
        self.own_R_T: list[list[float]] = [[] for _ in prepared.rows]
        self.loss_of = losses.get(cfg.loss)
        self.behaviour_R_T = [at_trained(r, r.behaviour_logprobs) for r in prepared.rows]
        self.weights_R, self.divisor = data.loss_weights(
            prepared.rows, cfg.loss_aggregation, cfg.aggregation_length or cfg.seq_len
        )
        self.teacher = cfg.distill_coef > 0 or cfg.loss == "distillation"

    def accumulate(self, sums: Sums) -> None:
        """Backward of every pass of this rank; the gradients are left in the parameters."""
        policy, rows, world = self.policy, self.prepared.rows, self.policy.world
        weights_R_T = [[w] * len(r.trained) for w, r in zip(self.weights_R, rows)]
        kept_R_T = self._kept()
        sampled = Mismatch()
        loss = torch.zeros((), dtype=torch.float64, device=policy.device)
        for plan in policy.plan(rows, divisor=world.size)[world.rank :: world.size]:
            if world.size == 1:  # several ranks stop together, between batches
                self.stop.check()
            found, loss_of_pass = self._backward(plan, weights_R_T, kept_R_T, sums)
            sampled += found
            loss += loss_of_pass
            sums.add({"packed_tokens": float(plan.length)}, 0.0)
            sums.add({"padding_share": plan.computed - plan.length}, plan.computed)
        # Each pass is divided by the size of the whole: the parts of a step add up to one.
        sums.add({"loss": loss}, float(world.first))
        if self.first:
            sums.add({"logprob_mismatch_mean": sampled.total}, float(sampled.tokens))
            sums.maximum({"logprob_mismatch_max": sampled.max})
            verify.require_same_policy(
                over_ranks(sampled, world), self.state.version, self.cfg.logprob_tolerance
            )

    def _kept(self) -> list[list[bool]] | None:
        """Which trained tokens a loss that judges the minibatch as a whole keeps, (R, T)."""
        if (mask_of := losses.batch_mask(self.cfg.loss)) is None:
            return None
        proximal_R_T = self.proximal_R_T or self.policy.trained_logprobs(self.prepared.rows)
        return mask_of(proximal_R_T, self.behaviour_R_T, self.cfg)

    def _backward(
        self,
        plan: Pass,
        weights_R_T: Sequence[Sequence[float]],
        kept_R_T: Sequence[Sequence[bool]] | None,
        sums: Sums,
    ) -> tuple[Mismatch, Tensor]:
        """Loss and gradient of one pass; how far its fresh tokens are from the sampler."""
        cfg, policy, device = self.cfg, self.policy, self.policy.device
        scores = policy.score(plan, entropy_grad=cfg.entropy_coef > 0, teacher=self.teacher)
        weights = spread(plan, weights_R_T, device)
        behaviour = spread(plan, self.behaviour_R_T, device)
        advantages = spread(plan, self.prepared.advantages_R_T, device)
        proximal = scores.logprobs.detach()
        if self.proximal_R_T is not None:
            proximal = spread(plan, self.proximal_R_T, device)
        elif cfg.epochs_per_batch > 1:
            self._keep(plan, proximal)
        extras: dict[str, Any] = {}
        if kept_R_T is not None:
            extras["keep"] = spread(plan, kept_R_T, device) > 0
        if self.teacher:
            teacher_logprobs, teacher_mask = spread_teacher(plan, self.prepared.rows, device)
            if cfg.loss == "distillation":
                extras["teacher_logprobs"] = teacher_logprobs
                extras["teacher_mask"] = teacher_mask
                extras["student_logprobs"] = scores.teacher
        loss_sum, metrics = self.loss_of(
            scores.logprobs, proximal, behaviour, advantages, weights, cfg, **extras
        )
        loss_sum = loss_sum + self._beside(plan, scores, weights)
        if cfg.distill_coef > 0 and cfg.loss != "distillation":
            assert scores.teacher is not None  # asked for above
            teach = (scores.teacher, teacher_logprobs)
            distilled = distillation.distill_sum(*teach, weights, teacher_mask, cfg)
            loss_sum = loss_sum + cfg.distill_coef * distilled
            with torch.no_grad():  # every token once, whatever the aggregation
                once = distillation.distill_sum(*teach, scores.mask, teacher_mask, cfg)
            metrics = {**metrics, "distill_loss": once}
        torch.autograd.backward(loss_sum / self.divisor)
        tokens = scores.mask.sum()
        sums.add({**metrics, "entropy": scores.entropy.sum()}, tokens)
        add_logprobs(sums, scores.logprobs, behaviour, advantages, scores.mask)
        sampled = Mismatch()
        if self.first:
            sampled = sampled_mismatch(
                scores,
                behaviour,
                spread(plan, _versions(self.prepared), device, fill=MASKED_VERSION),
                self.state.version,
                cfg.logprob_tolerance,
            )
        return sampled, loss_sum.detach().double() / self.divisor

    def _beside(self, plan: Pass, scores: Scores, weights: Tensor) -> Tensor:
        """Entropy bonus and KL to the reference, summed like the loss."""
        cfg = self.cfg
        beside = weights.new_zeros(())
        if cfg.entropy_coef > 0:
            beside = beside - cfg.entropy_coef * (weights * scores.entropy).sum()
        if self.prepared.reference_R_T is not None and cfg.kl_in == "loss":
            reference = spread(plan, self.prepared.reference_R_T, self.policy.device)
            penalty = kl.penalty(scores.logprobs, reference, cfg.kl_estimator, weights)
            beside = beside + cfg.kl_coef * (weights * penalty).sum()
        return beside

    def _keep(self, plan: Pass, logprobs: Tensor) -> None:
        for i, values in zip(plan.row_ids, logprobs.tolist()):
            self.own_R_T[i] = values[: len(self.prepared.rows[i].trained)]


def _versions(prepared: Prepared) -> list[list[int]]:
    return [at_trained(row, row.versions) for row in prepared.rows]


def _step_critic(
    cfg: TrainingConfig, critic: Critic, prepared: Prepared, step: int, sums: Sums
) -> None:
    """One step of the value model on the rows of a policy step."""
    model, world = critic.model, critic.model.world
    assert prepared.values_R_T is not None and prepared.returns_R_T is not None
    tokens = max(1, prepared.tokens)
    for plan in model.plan(prepared.rows, divisor=world.size)[world.rank :: world.size]:
        values, mask = model.score(plan)
        old = spread(plan, prepared.values_R_T, model.device)
        returns = spread(plan, prepared.returns_R_T, model.device)
        loss_sum, metrics = value.value_loss(values, old, returns, mask, cfg)
        torch.autograd.backward(loss_sum / tokens)
        sums.add(metrics, mask.sum())
    optim.step(critic.optimizer, model, cfg, step)

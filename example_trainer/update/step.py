"""Optimizer steps on a batch.

    for each minibatch                      an optimizer step
        for each micro-batch                       a forward and backward, bounded memory
            score -> loss sum / divisor -> backward
        clip, step

The divisor belongs to the whole minibatch, over all ranks, and a loss is a sum: so the
gradient is the same for any packing, any number of micro-batches and any number of ranks.
Environments with an algorithm are parts of the minibatch (``update/mixture``), each with its loss
and its divisor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atroposlib.utils.models.low_precision import kept_casts
from atroposlib.wire import MASKED_VERSION
from example_trainer import losses
from example_trainer.advantage.prepare import Prepared, minibatches, part_of
from example_trainer.data.packing import MicroBatch
from example_trainer.data.rows import Row, at_trained
from example_trainer.losses.tokens import LossInputs
from example_trainer.model.critic import ValueModel, value_loss
from example_trainer.model.model_dir import TrainerState
from example_trainer.model.policy import Policy, Scores
from example_trainer.model.scoring import pad_teacher, pad_to_tensor
from example_trainer.run.reports import TokenValues
from example_trainer.settings.algorithms import parts_of
from example_trainer.settings.config import TrainingConfig
from example_trainer.settings.optim import OptimSettings
from example_trainer.state import StopSignal
from example_trainer.update.mixture import loss_parts
from example_trainer.update.optimizer import clipped_step
from example_trainer.update.step_metrics import (
    StepMetrics,
    add_logprobs,
    device_memory,
    with_deviations,
)
from example_trainer.weights.agreement import Agreement
from example_trainer.weights.mismatch import Mismatch, reduce_mismatch, sampled_mismatch
from example_trainer.weights.verify import SamplerCheck

Optimizer = torch.optim.Optimizer


@dataclass
class Critic:
    """The value model, its optimizer, and the optimizer's settings, with a learning rate."""

    model: ValueModel
    optimizer: Optimizer
    settings: OptimSettings


def learn(
    cfg: TrainingConfig,
    policy: Policy,
    optimizer: Optimizer,
    prepared: Prepared,
    state: TrainerState,
    stop: StopSignal,
    critic: Critic | None = None,
    values: TokenValues | None = None,
    agreement: Agreement | None = None,
) -> dict[str, float | None]:
    """Take ``minibatches x ppo_epochs`` optimizer steps; metrics over all steps.

    ``values`` receives what the steps computed of each token. ``agreement`` limits the
    distance of fresh tokens to their sampler; None: the limits of a new run.

    Raises:
        StaleWeights: fresh tokens have different logprobs at the sampler than here.
        Stopped: between two micro-batches; the step is not taken.
    """
    parts = minibatches(prepared.rows, cfg.minibatches)
    limits = agreement or Agreement.of(cfg.compute_dtype, cfg.max_logprob_mismatch)
    proximal_R_T = prepared.proximal_R_T
    algorithms = parts_of(cfg, [row.environment for row in prepared.rows])
    centred = any(losses.needs_proximal(own.settings) for own in algorithms)
    if proximal_R_T is None and len(parts) > 1 and centred:
        proximal_R_T = policy.trained_logprobs(prepared.rows)
    sums, norms, skipped = StepMetrics(), [], 0
    for epoch in range(cfg.ppo_epochs):
        for number, indices in enumerate(parts):
            first = epoch == 0 and number == 0
            update = _Update(
                cfg,
                policy,
                part := part_of(prepared, indices),
                stop,
                SamplerCheck.of(part.rows, state, limits) if first else None,
                values=values,
                places=indices,
            )
            if proximal_R_T is not None and not first:
                update.proximal_R_T = [proximal_R_T[i] for i in indices]
            update.accumulate(sums)
            if len(parts) == 1 and first:
                proximal_R_T = update.own_R_T
            norm, stepped = clipped_step(
                optimizer, policy, cfg, state.step, cfg.training_steps
            )
            norms.append(norm)
            skipped += not stepped
            if critic is not None:
                _critic_backward(critic.model, update.prepared, cfg.critic_clip_eps, sums)
                clipped_step(
                    critic.optimizer,
                    critic.model,
                    critic.settings,
                    state.step,
                    cfg.training_steps,
                )
    sums.share(policy.world)
    if values is not None:
        values.share(policy.world, [len(row.trained) for row in prepared.rows])
    return {
        # Null where the batch had no token to compare.
        **dict.fromkeys(("logprob_mismatch_mean", "logprob_mismatch_max")),
        **with_deviations(sums.means()),
        **device_memory(policy.device),
        "packed_tokens": sums.total("packed_tokens"),
        "lr": optimizer.param_groups[0]["lr"],
        "grad_norm": norms[-1] if norms else 0.0,
        "optimizer_steps": len(norms) - skipped,
        "updates_skipped": skipped,
    }


@dataclass
class _Update:
    """The rows of an optimizer step.

    ``proximal_R_T`` None means the policy's own logprobs: in the first update of a batch the
    policy being trained is the proximal policy, so its detached logprobs serve exactly and a
    forward is spared. With a single minibatch they (``own_R_T``) serve later epochs, too.
    """

    settings: TrainingConfig
    policy: Policy
    prepared: Prepared
    stop: StopSignal
    check: SamplerCheck | None  # None: not compared
    proximal_R_T: list[list[float]] | None = None
    values: TokenValues | None = None  # values of the whole batch
    places: Sequence[int] = ()  # places of the rows in the batch

    def __post_init__(self) -> None:
        settings = self.settings
        self.parts = loss_parts(settings, self.prepared.rows, settings.seq_len)
        self.candidates = any(part.needs_candidates for part in self.parts)
        if self.candidates:
            self.prepared = replace(self.prepared, rows=self._softened_rows())
        rows = self.prepared.rows
        self.teacher_R_T: list[list[float]] | None = None  # of the sampled tokens
        if any(part.needs_teacher_sampled for part in self.parts):
            self.teacher_R_T = [row.trained_teacher_logprobs for row in rows]
        # Logprobs of rows that this rank scored, before the step; empty for all further rows, unless a
        # loss has a batch mask.
        self.own_R_T: list[list[float]] = [[] for _ in rows]
        self.behaviour_R_T = [at_trained(row, row.behaviour_logprobs) for row in rows]
        self.versions_R_T = [row.comparable_versions for row in rows] if self.check else []
        self.entropy_grad = any(part.settings.entropy_coef > 0 for part in self.parts)

    def _softened_rows(self) -> list[Row]:
        """The rows with the temperature of each part for the teacher's candidates."""
        rows = list(self.prepared.rows)
        for part in self.parts:
            temperature = part.candidate_temperature
            for place in part.places:
                if rows[place].teacher_temperature != temperature:
                    rows[place] = replace(rows[place], teacher_temperature=temperature)
        return rows

    def accumulate(self, sums: StepMetrics) -> None:
        """Backward of every micro-batch of this rank; the gradients are left in the parameters."""
        policy, rows, world = self.policy, self.prepared.rows, self.policy.world
        weights_R_T = self._weights()
        kept_R_T = self._kept_tokens()
        if self.values is not None and kept_R_T is not None:
            self.values.kept_R.update(zip(self.places, kept_R_T))
        sampled = Mismatch()
        losses_P = torch.zeros(len(self.parts), dtype=torch.float64, device=policy.device)
        with kept_casts(policy.device, policy.compute_dtype):
            for microbatch in policy.plan_share(rows):
                if world.alone:  # several ranks stop together, between batches
                    self.stop.check()
                mismatch, part_P = self._backward(microbatch, weights_R_T, kept_R_T, sums)
                sampled += mismatch
                losses_P += part_P
                sums.add({"packed_tokens": float(microbatch.length)}, 0.0)
                padding = microbatch.computed - microbatch.length
                sums.add({"padding_share": padding}, microbatch.computed)
        # Each micro-batch is divided by the size of the whole: the parts of a step add up to one.
        sums.add({"loss": losses_P.sum()}, float(world.is_rank0))
        for part, loss in zip(self.parts, losses_P):
            own = part.metrics({"loss": loss / part.share})
            sums.add(own, float(world.is_rank0))
        if self.check is not None and self.check.version is not None:
            name = self.check.metric
            sums.add({f"{name}_mean": sampled.total}, float(sampled.tokens))
            sums.maximum({f"{name}_max": sampled.max})
            self.check.require(policy, reduce_mismatch(sampled, world))

    def _weights(self) -> list[list[float]]:
        """Weight of every trained token in its loss, (R, T); 0 where its entropy is too low."""
        rows = self.prepared.rows
        weights_R_T: list[list[float]] = [[] for _ in rows]
        entropies_R_T = None
        if any(part.settings.entropy_share < 1.0 for part in self.parts):
            entropies_R_T = self.policy.trained_entropies(rows)
        for part in self.parts:
            for place, weights_T in zip(part.places, part.weights(entropies_R_T)):
                weights_R_T[place] = weights_T
        return weights_R_T

    def _kept_tokens(self) -> list[list[bool]] | None:
        """Trained tokens that the losses keep, (R, T); None if none has a batch mask."""
        masks_P = [losses.batch_mask_of(part.settings.loss) for part in self.parts]
        if not any(masks_P):
            return None
        proximal_R_T = self.proximal_R_T
        if proximal_R_T is None:
            proximal_R_T = self.policy.trained_logprobs(self.prepared.rows)
            self.own_R_T = proximal_R_T  # of all ranks, for the masks of later epochs
        kept_R_T = [[True] * len(row.trained) for row in self.prepared.rows]
        for part, mask_of in zip(self.parts, masks_P):
            if mask_of is None:
                continue
            proximal, behaviour = part.pick(proximal_R_T), part.pick(self.behaviour_R_T)
            for place, kept_T in zip(part.places, mask_of(proximal, behaviour, part.settings)):
                kept_R_T[place] = kept_T
        return kept_R_T

    def _backward(
        self,
        microbatch: MicroBatch,
        weights_R_T: Sequence[Sequence[float]],
        kept_R_T: Sequence[Sequence[bool]] | None,
        sums: StepMetrics,
    ) -> tuple[Mismatch, Tensor]:
        """Gradient of a micro-batch; distance of its newest tokens to the sampler, (P,) losses."""
        policy, device = self.policy, self.policy.device
        scores = policy.score(
            microbatch,
            entropy_grad=self.entropy_grad,
            teacher=self.candidates,
        )
        batch = self._inputs(microbatch, scores, weights_R_T, kept_R_T)
        reference = None
        if self.prepared.reference_R_T is not None:
            reference = pad_to_tensor(microbatch, self.prepared.reference_R_T, device)
        sums_P = []
        for part in self.parts:  # also parts without a row here: every rank adds all metrics
            loss_sum = part.add_loss(microbatch.row_ids, batch, scores, reference, sums)
            sums_P.append(loss_sum)
        if self.values is not None:
            rows = [self.places[i] for i in microbatch.row_ids]
            self.values.add(rows, scores.logprobs, batch.clipped)
        torch.autograd.backward([s / part.divisor for s, part in zip(sums_P, self.parts)])
        sums.add({"entropy": scores.entropy.sum()}, scores.mask.sum())
        behaviour = batch.behaviour_logprobs
        add_logprobs(sums, scores.logprobs, behaviour, batch.advantages, scores.mask)
        sampled = Mismatch()
        if self.check is not None:
            sampled = sampled_mismatch(
                scores,
                behaviour,
                pad_to_tensor(microbatch, self.versions_R_T, device, fill=MASKED_VERSION),
                self.check.version,
                self.check.agreement.tolerance,
            )
        return sampled, torch.stack(
            [s.detach().double() / part.divisor for s, part in zip(sums_P, self.parts)]
        )

    def _inputs(
        self,
        microbatch: MicroBatch,
        scores: Scores,
        weights_R_T: Sequence[Sequence[float]],
        kept_R_T: Sequence[Sequence[bool]] | None,
    ) -> LossInputs:
        device = self.policy.device

        def pad(values_R_T: Sequence[Sequence[float]]) -> Tensor:
            return pad_to_tensor(microbatch, values_R_T, device)

        proximal = scores.logprobs.detach()
        if self.proximal_R_T is not None:
            proximal = pad(self.proximal_R_T)
        elif self.settings.ppo_epochs > 1:
            for i, values in zip(microbatch.row_ids, proximal.tolist()):
                self.own_R_T[i] = values[: len(self.prepared.rows[i].trained)]
        teacher_logprobs = teacher_mask = None
        if self.candidates:
            teacher_logprobs, teacher_mask = pad_teacher(
                microbatch, self.prepared.rows, device
            )
        return LossInputs(
            logprobs=scores.logprobs,
            proximal_logprobs=proximal,
            behaviour_logprobs=pad(self.behaviour_R_T),
            advantages=pad(self.prepared.advantages_R_T),
            loss_mask=pad(weights_R_T),
            keep=None if kept_R_T is None else pad(kept_R_T) > 0,
            student_logprobs=scores.teacher,
            teacher_logprobs=teacher_logprobs,
            teacher_mask=teacher_mask,
            teacher_sampled=None if self.teacher_R_T is None else pad(self.teacher_R_T),
        )


def _critic_backward(
    model: ValueModel, prepared: Prepared, clip_eps: float, sums: StepMetrics
) -> None:
    """Gradient of the value model on the rows of a policy step."""
    assert prepared.values_R_T is not None and prepared.returns_R_T is not None
    tokens = max(1, prepared.tokens)
    for microbatch in model.plan_share(prepared.rows):
        values, mask = model.score(microbatch)
        old = pad_to_tensor(microbatch, prepared.values_R_T, model.device)
        returns = pad_to_tensor(microbatch, prepared.returns_R_T, model.device)
        loss_sum, metrics = value_loss(values, old, returns, mask, clip_eps)
        torch.autograd.backward(loss_sum / tokens)
        sums.add(metrics, mask.sum())

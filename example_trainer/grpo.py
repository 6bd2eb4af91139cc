"""The trainer. One process, one loop:

    rollout API --claim--> batch -> rows -> advantages -> packs -> loss -> step
         ^                                                                   |
         '--ack-- check servers <-- inference servers <-- publish weights <--'

Who waits for whom: the trainer for a whole batch; the servers, paused, for whole weights;
the environments for servers and, once enough is queued, for the trainer.

Order of publish and ack. A batch is acked only when the weights that learned from it are
published, and ``trainer_state.json`` beside them names the batch. Killed before the
publish, the trainer loses the step and the batch is delivered again: trained once. Killed
between publish and ack, the batch is delivered again too, but a trainer started from the
published directory finds it in trainer_state.json and acks it without training. Acking
first would lose the batch in the one case and could not tell the cases apart.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import torch

from atroposlib.client import RolloutClient
from atroposlib.errors import AtroposError, StaleWeights
from example_trainer import (
    advantages,
    alignment,
    checkpoint,
    data,
    losses,
    model,
    optim,
    session,
)
from example_trainer.alignment import Mismatch
from example_trainer.cli import parse_args
from example_trainer.config import TrainingConfig
from example_trainer.data import Row
from example_trainer.heartbeat import Pulse
from example_trainer.metrics import Clock, MetricsLog, batch_metrics
from example_trainer.minibatch import TokenSums, sampled_mismatch, targets
from example_trainer.model import Policy
from example_trainer.weights import Publisher, make_publisher
from example_trainer.weights.engines import Engine

HEARTBEAT_TIMEOUT_S = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Console command ``atropos-grpo``: 0 when done or asked to stop, 1 on an error."""
    cfg = parse_args(argv)
    stop = session.Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop.request)
    try:
        train(cfg, stop)
    except session.Stopped as stopped:
        print(f"stopped by {stopped}; a batch in hand was not acked", flush=True)
    except AtroposError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def train(cfg: TrainingConfig, stop: session.Stop | None = None) -> None:
    """Train until ``training_steps`` and write ``save_path/final_model``.

    Raises:
        AtroposError: says what to do; the batch in hand stays unacked.
        session.Stopped: ``stop`` was requested; what is published stays published.
    """
    with ExitStack() as stack:
        beats = stack.enter_context(
            closing(RolloutClient(cfg.atropos_url, timeout_s=HEARTBEAT_TIMEOUT_S))
        )
        pulse = stack.enter_context(Pulse(beats.heartbeat, f"atropos-grpo {cfg.model_name}"))
        waits = session.Waits(stop or session.Stop(), pulse)
        client = stack.enter_context(closing(RolloutClient(cfg.atropos_url, on_wait=waits)))
        engines = session.connect_all(cfg, waits, stack)
        log = stack.enter_context(MetricsLog(cfg))
        _train(cfg, client, engines, waits, log)
        pulse.phase("done")


def _train(
    cfg: TrainingConfig,
    client: RolloutClient,
    engines: Sequence[Engine],
    waits: session.Waits,
    log: MetricsLog,
) -> None:
    torch.manual_seed(cfg.seed)
    cfg = cfg.model_copy(update={"device": model.resolve_device(cfg.device)})
    policy = model.load(cfg)
    optimizer = optim.build(policy, cfg)
    loss_of = losses.get(cfg.loss)
    publisher = make_publisher(cfg, engines, client.announce_version)
    clock, phase = Clock(), waits.phase

    phase("checking servers")  # a wrong model or tokenizer is refused before anything else
    if cfg.check_rows:
        alignment.check_start(policy, engines, cfg.logprob_tolerance)
    state = session.register(client, cfg, policy)
    session.name_weights(client, engines, state.version)

    while state.step < cfg.training_steps:
        # A batch: whole groups, sequences_per_step rows, leased to this trainer.
        phase("waiting for batch", step=state.step, version=state.version)
        with clock.measure("wait"):
            claimed = session.wait_for_batch(client, cfg, state, waits)

        # Rows, advantages, steps. Baselines go by group id, never by place in the batch.
        phase("training")
        with clock.measure("train"):
            batch = data.to_rows(claimed.batch or [], policy.max_tokens_per_row)
            advantages_R = advantages.compute(
                [row.reward for row in batch.rows], [row.group for row in batch.rows]
            )
            rows, advantages_R_T = data.for_loss(batch.rows, advantages_R)
            learned = learn(
                cfg, policy, optimizer, loss_of, rows, advantages_R_T, state, waits.stop
            )
        record = {**batch_metrics(claimed, batch, rows, state.version), **learned}

        # The new version to every server. From here to the ack a signal waits.
        state = replace(state, step=state.step + 1, batch_no=claimed.batch_no)
        if state.step % cfg.publish_every == 0 or state.step == cfg.training_steps:
            state = replace(state, version=state.step)
            phase("publishing weights", step=state.step, version=state.version)
            with clock.measure("publish"):
                publisher.publish(policy, state)
            phase("checking servers")
            with clock.measure("check"):
                record |= check(cfg, policy, publisher, rows, state.version)
        client.ack(claimed)

        if cfg.checkpoint_interval and state.step % cfg.checkpoint_interval == 0:
            phase("saving checkpoint")
            with clock.measure("save"):
                checkpoint.save_model(
                    policy, Path(cfg.save_path) / f"step_{state.step}", state
                )
        log.write({"step": state.step, "version": state.version, **record, **clock.take()})

    phase("saving checkpoint")
    checkpoint.save_model(policy, Path(cfg.save_path) / "final_model", state)


def learn(
    cfg: TrainingConfig,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    loss_of: losses.Loss,
    rows: Sequence[Row],
    advantages_R_T: Sequence[Sequence[float]],
    state: checkpoint.TrainerState,
    stop: session.Stop,
) -> dict[str, float]:
    """Take ``epochs_per_batch`` optimizer steps on one batch; metrics of the last one.

    Raises:
        StaleWeights: tokens of the version held here have other logprobs than here.
    """
    weights_R, divisor = data.loss_weights(rows, cfg.loss_aggregation)
    passes = policy.plan(rows)  # packs that hold shared prefixes once
    proximal: list[torch.Tensor] = []  # (B, T) per pass, of the policy before the first step
    sampled, skipped = Mismatch(), 0
    for epoch in range(cfg.epochs_per_batch):
        sums = TokenSums()
        for i, plan in enumerate(passes):
            stop.check()
            wanted = targets(plan, rows, advantages_R_T, weights_R, policy.device)
            scores = policy.score(plan, entropy_grad=cfg.entropy_coef > 0)
            if epoch == 0:
                proximal.append(scores.logprobs.detach())
                sampled += sampled_mismatch(
                    scores, wanted, state.version, cfg.logprob_tolerance
                )
            loss_sum, metrics = loss_of(
                scores.logprobs,
                proximal[i],
                wanted.behaviour,
                wanted.advantages,
                wanted.weights,
                cfg,
            )
            loss_sum = loss_sum - cfg.entropy_coef * (wanted.weights * scores.entropy).sum()
            # One divisor for the whole batch: the gradient is the same for any split.
            torch.autograd.backward(loss_sum / divisor)
            sums.add({**metrics, "entropy": scores.entropy.sum(), "loss": loss_sum})
        alignment.require_same_policy(sampled, state.version, cfg.logprob_tolerance)
        grad_norm, stepped = optim.step(optimizer, policy, cfg, state.step)
        skipped += not stepped
    tokens = sum(len(row.trained) for row in rows)
    return {
        **sums.means(tokens),
        "loss": sums.total("loss") / divisor,
        "lr": optimizer.param_groups[0]["lr"],
        "grad_norm": grad_norm,
        "updates_skipped": skipped,
        "logprob_mismatch_mean": sampled.mean,
        "logprob_mismatch_max": sampled.max,
        "packed_tokens": sum(len(pack.tokens) for plan in passes for pack in plan.packs),
    }


def check(
    cfg: TrainingConfig,
    policy: Policy,
    publisher: Publisher,
    rows: Sequence[Row],
    version: int,
) -> dict[str, float]:
    """Compare every server with the trainer on a few rows of the batch.

    Raises:
        StaleWeights: they disagree; every server is paused again first.
    """
    sequences = alignment.choose_rows(rows, cfg.check_rows)
    try:
        found = alignment.check_servers(
            policy, publisher.engines, sequences, version, cfg.logprob_tolerance
        )
    except StaleWeights:
        publisher.hold()
        raise
    return {"publish_mismatch_mean": found.mean, "publish_mismatch_max": found.max}


if __name__ == "__main__":
    sys.exit(main())

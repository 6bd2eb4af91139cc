"""The trainer. One loop, the same on every rank:

    rollout API --claim--> batch -> rows -> advantages -> minibatches -> packs -> loss -> step
         ^                                                                               |
         '--- ack <-- check servers <-- inference servers <-- publish weights <----------'

Who waits for whom: the trainer for a whole batch (the next one is fetched while it learns);
the servers, paused, for whole weights; the environments for servers and, once enough is
queued, for the trainer. Only the first rank talks to anybody; all ranks compute.

A batch is acked when the weights that learned from it are published, and a recovery
checkpoint names the last batch in it. Killed anywhere, a restarted trainer goes back to the
last whole checkpoint and rewinds the API to its batch: what came later is delivered again,
in the same order, and nothing is trained twice or skipped (``recovery``).
"""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import torch

from atroposlib.client import RolloutClient
from atroposlib.errors import AtroposError, StaleWeights
from example_trainer import losses
from example_trainer.advantage.prepare import prepare
from example_trainer.checkpoint.exports import ModelExporter
from example_trainer.checkpoint.recovery import Recovery
from example_trainer.data.rows import Row, to_rows
from example_trainer.distributed import ranks
from example_trainer.distributed.ranks import Ranks
from example_trainer.model import loading
from example_trainer.model.critic import load_value_model
from example_trainer.model.model_dir import TrainerState
from example_trainer.model.policy import Policy
from example_trainer.run import connect
from example_trainer.run import display as live
from example_trainer.run.connect import HeartbeatThread, WaitReporter
from example_trainer.run.evaluator import Evaluator
from example_trainer.run.metrics_log import Clock, MetricsLog, SilentLog, batch_metrics
from example_trainer.run.prefetch import BatchPrefetcher, next_batch
from example_trainer.settings.args import parse_args
from example_trainer.settings.config import TrainingConfig
from example_trainer.state import Stopped, StopSignal
from example_trainer.update.optimizer import build_optimizer
from example_trainer.update.step import Critic, learn
from example_trainer.weights import Publisher, make_publisher, verify
from example_trainer.weights.engines import InferenceServer

HEARTBEAT_TIMEOUT_S = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Console command ``atropos-grpo``: 0 when done or asked to stop, 1 on an error."""
    cfg = parse_args(argv)
    stop = StopSignal()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop.request)
    try:
        train(cfg, stop)
    except Stopped as stopped:
        print(f"stopped by {stopped}; a batch in hand was not acked", flush=True)
    except AtroposError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


@dataclass
class Connections:
    """What only the first rank has: the ways to the other processes."""

    client: RolloutClient | None
    engines: Sequence[InferenceServer]
    waits: WaitReporter
    log: MetricsLog | SilentLog


def train(cfg: TrainingConfig, stop: StopSignal | None = None) -> None:
    """Train until ``training_steps`` and write ``save_path/final_model``.

    Raises:
        AtroposError: says what to do; the batch in hand stays unacked.
        session.Stopped: ``stop`` was requested; what is published stays published.
    """
    cfg = cfg.model_copy(update={"device": loading.resolve_device(cfg.device)})
    with ExitStack() as stack:
        world = stack.enter_context(ranks.start(cfg))
        cfg = cfg.model_copy(update={"device": str(world.device)})  # of this rank
        outside = _connect(cfg, world, stop or StopSignal(), stack)
        _train(cfg, world, outside, stack)
        outside.waits.phase("done")


def _connect(
    cfg: TrainingConfig, world: Ranks, stop: StopSignal, stack: ExitStack
) -> Connections:
    name = f"atropos-grpo {cfg.model_name}"
    if not world.is_rank0:
        waits = WaitReporter(stop, HeartbeatThread(lambda beat: None, name))
        return Connections(None, [], waits, stack.enter_context(MetricsLog.silent()))
    beats = stack.enter_context(
        closing(RolloutClient(cfg.atropos_url, timeout_s=HEARTBEAT_TIMEOUT_S))
    )
    display = stack.enter_context(
        closing(live.open_display(cfg.live_table, cfg.model_name, cfg.training_steps))
    )
    send = live.relay(display, beats.heartbeat)  # the table says what the API is told
    waits = WaitReporter(stop, stack.enter_context(HeartbeatThread(send, name)))
    client = stack.enter_context(closing(RolloutClient(cfg.atropos_url, on_wait=waits)))
    engines = connect.connect_servers(cfg, cfg.servers, cfg.server_token, waits, stack)
    return Connections(client, engines, waits, stack.enter_context(MetricsLog(cfg, display)))


@dataclass
class TrainedModels:
    """What is trained, and what it is compared with."""

    policy: Policy
    optimizer: torch.optim.Optimizer
    reference: Policy | None
    critic: Critic | None


def _load(cfg: TrainingConfig, world: Ranks) -> TrainedModels:
    policy = loading.load(cfg, world)
    reference = None
    if cfg.kl_coef > 0:
        reference = loading.load_reference(cfg, cfg.reference_model, world)
    critic = None
    if cfg.critic:
        value_model = load_value_model(cfg, cfg.critic_model, world)
        own = cfg.model_copy(update={"lr": cfg.critic_lr})
        critic = Critic(value_model, build_optimizer(value_model, own))
    return TrainedModels(policy, build_optimizer(policy, cfg), reference, critic)


def _resume(
    cfg: TrainingConfig,
    models: TrainedModels,
    recovery: Recovery,
    publisher: Publisher,
    outside: Connections,
) -> TrainerState:
    """Where training goes on; servers and API agree with the trainer about the weights."""
    policy, client, engines = models.policy, outside.client, outside.engines
    begins = recovery.begins(client)
    if begins and cfg.check_rows:  # a wrong model or tokenizer is refused before anything else
        verify.check_start(policy, engines, cfg.logprob_tolerance)
    state = recovery.resume(client, policy, models.optimizer, models.critic)
    if begins and client is not None:
        connect.label_servers(client, engines, state.version)
    # Servers may hold any version, also half of one; or wait for the first adapter.
    if not begins or publisher.publishes_start:
        outside.waits.phase("publishing weights", step=state.step, version=state.version)
        publisher.publish(policy, state)
        if cfg.check_rows:
            verify.check_start(policy, engines, cfg.logprob_tolerance)
    return state


def _train(cfg: TrainingConfig, world: Ranks, outside: Connections, stack: ExitStack) -> None:
    client, waits, log = outside.client, outside.waits, outside.log
    clock, phase = Clock(), waits.phase
    torch.manual_seed(cfg.seed)
    random.seed(cfg.seed)

    # The models, and where an earlier life of this trainer left off.
    phase("loading the model")
    models = _load(cfg, world)
    policy = models.policy
    announce = client.announce_version if client is not None else None
    publisher = stack.enter_context(closing(make_publisher(cfg, outside.engines, announce)))
    saver, evaluator = ModelExporter(cfg, world, adapter=cfg.trains_adapter), Evaluator(
        cfg, world, waits
    )
    counters = {"saver": saver.frequency, "evaluator": evaluator.frequency}
    recovery = Recovery(cfg, world, counters)
    phase("joining the run")
    state = _resume(cfg, models, recovery, publisher, outside)
    log.begin(state.run_id, state.step)
    feed = (
        stack.enter_context(
            BatchPrefetcher(
                client,
                state,
                batches=cfg.training_steps - state.step,
                ahead=cfg.prefetch,
                lease_s=cfg.lease_s,
            )
        )
        if client is not None
        else None
    )
    needs_sampler = losses.needs_sampler(cfg.loss)
    first_evaluation = evaluator.at_start(state, cfg.servers)

    while state.step < cfg.training_steps:
        # A batch: whole groups, sequences_per_step rows, leased to this trainer.
        phase("waiting for batch", step=state.step, version=state.version)
        with clock.measure("wait"):
            claimed = next_batch(feed, world, waits, cfg.batch_timeout_s)

        # Rows, advantages, steps. Baselines go by group id, never by place in the batch.
        phase("training")
        with clock.measure("prepare"):
            batch = to_rows(
                claimed.batch or [], policy.max_tokens_per_row, needs_sampler=needs_sampler
            )
            prepared = prepare(
                batch.rows,
                cfg,
                state.version,
                reference=models.reference,
                critic=models.critic.model if models.critic else None,
            )
        with clock.measure("train"):
            learned = learn(
                cfg, policy, models.optimizer, prepared, state, waits.stop, models.critic
            )
        record = {**batch_metrics(claimed, batch, prepared, state.version), **learned}

        # The new version to every server. From here to the ack a signal waits.
        state = replace(state, step=state.step + 1, batch_no=claimed.batch_no)
        if state.step % cfg.publish_every == 0 or state.step == cfg.training_steps:
            state = replace(state, version=state.step)
            phase("publishing weights", step=state.step, version=state.version)
            with clock.measure("publish"):
                publisher.publish(policy, state)
            phase("checking servers")
            with clock.measure("check"):
                record |= check(cfg, policy, publisher, prepared.rows, state.version)
        if feed is not None:
            feed.ack(claimed)

        # Servers generate again while this is written. Recovery comes last: a step in it is
        # finished in every respect, and one that is not is repeated in every respect.
        epoch = cfg.steps_per_epoch
        epoch_ended = epoch is not None and state.step % epoch == 0
        phase("saving checkpoint")
        with clock.measure("save"):
            saver.maybe(policy, state, epoch_ended)
        phase("evaluating")
        with clock.measure("evaluate"):
            record |= first_evaluation | evaluator.maybe(state, epoch_ended, cfg.servers)
        first_evaluation = {}
        log.write({"step": state.step, "version": state.version, **record, **clock.take()})
        phase("saving for recovery")
        with clock.measure("recovery"):  # its seconds stand in the next record
            if recovery.due(state, epoch_ended):
                recovery.save(client, policy, models.optimizer, state, models.critic)

    phase("saving checkpoint")
    saver.final(policy, state)


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
    sequences = verify.choose_rows(rows, cfg.check_rows)
    try:
        found = verify.check_servers(
            policy, publisher.engines, sequences, version, cfg.logprob_tolerance
        )
    except StaleWeights:
        publisher.pause_all()
        raise
    return {"publish_mismatch_mean": found.mean, "publish_mismatch_max": found.max}


if __name__ == "__main__":
    sys.exit(main())

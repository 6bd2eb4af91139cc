"""GRPO trainer: a loop that is the same on every rank.

    rollout API --claim--> batch -> rows -> advantages -> micro-batches -> loss -> step
         ^                                                                          |
         '--- ack <-- check servers <-- inference servers <-- publish weights <-----'

The trainer waits for a whole batch; the next batch is fetched while it trains. The servers are
paused until they hold whole weights. The environments wait for the servers and, once enough
is queued, for the trainer. Only rank 0 talks to other processes; every rank computes.

A batch is acked when the weights trained on it are published. A recovery checkpoint names the
last batch in its weights. After a crash at any point the trainer loads the last whole
checkpoint and rewinds the API to its batch: later batches are delivered again in the same
order, so that no batch is trained twice or skipped (``checkpoint/recovery``).
"""

from __future__ import annotations

from example_trainer.settings.args import PROG, config_to_run

if __name__ == "__main__":
    CONFIG = config_to_run()  # read before the import of torch: an error costs no seconds

import logging
import os
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from atroposlib.client import RolloutClient
from atroposlib.errors import AtroposError, ConfigError, OutOfDeviceMemory
from atroposlib.utils.command import logs
from atroposlib.utils.command.signals import on_signals
from example_trainer.advantage.prepare import Prepared
from example_trainer.checkpoint.exports import ModelExporter
from example_trainer.checkpoint.recovery import Recovery
from example_trainer.distributed import ranks
from example_trainer.distributed.ranks import Ranks
from example_trainer.learner import TrainedModels, load_models, training_rows
from example_trainer.model.model_dir import TrainerState
from example_trainer.model.policy import Policy
from example_trainer.run import connect, display
from example_trainer.run.connect import HeartbeatThread, WaitReporter
from example_trainer.run.evaluation import Evaluation
from example_trainer.run.evaluation_places import make_place
from example_trainer.run.evaluator import Evaluator
from example_trainer.run.metrics_log import (
    Clock,
    MetricsLog,
    batch_metrics,
    mismatch_details,
)
from example_trainer.run.prefetch import BatchPrefetcher, next_batch
from example_trainer.run.reports import Reporter, TokenValues
from example_trainer.settings.config import EvaluatorSettings, TrainingConfig
from example_trainer.settings.plugins import record_plugins
from example_trainer.state import Resumable, Stopped, StopSignal, end
from example_trainer.state.device_memory import named_out_of_memory
from example_trainer.update.step import learn
from example_trainer.weights import canary, make_publisher, verify
from example_trainer.weights.agreement import Agreement
from example_trainer.weights.publisher import Keeper, Publisher

HEARTBEAT_TIMEOUT_S = 5.0
STOPPED = os.EX_TEMPFAIL  # the run is not over: the trainer goes on if it is started again
logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``atropos-grpo``; return its exit status.

    0 when done, 1 on an error, 2 where another start would fail alike, STOPPED after a signal.
    """
    return run_training(partial(train, config_to_run(argv)))


def run_training(training: Callable[[StopSignal], None]) -> int:
    """Train until done or a signal; return the exit status of :func:`main`."""
    stop = StopSignal()
    on_signals(stop.request, signal.SIGTERM, signal.SIGINT)
    try:
        with named_out_of_memory():
            training(stop)
    except Stopped as stopped:
        logger.info(f"stopped by {stopped}; a batch in hand was not acked")
        return STOPPED
    except AtroposError as error:
        logs.report(PROG, f"{type(error).__name__}: {error}")
        # A restarted trainer has the same settings and plug-ins, and gets the same batch again.
        return 2 if isinstance(error, (ConfigError, OutOfDeviceMemory)) else 1
    return 0


@dataclass
class Connections:
    """Connections to the rollout API. Ranks above 0 have only ``waits``."""

    client: RolloutClient | None
    waits: WaitReporter
    log: MetricsLog | None
    reporter: Reporter | None

    def report_evaluation(self, evaluation: Evaluation) -> None:
        """Log an evaluation under the step that it is about, and report it to the API."""
        if self.log is not None:
            self.log.log_evaluation(evaluation)
        if self.reporter is not None:
            self.reporter.evaluation(evaluation.step, evaluation.metrics())


def train(cfg: TrainingConfig, stop: StopSignal | None = None) -> None:
    """Train until ``training_steps`` and write ``save_path/final_model``.

    The end is earlier if the launcher says that every environment has ended, and no batch is left.

    Raises:
        AtroposError: the message names the remedy; the batch in hand stays unacked.
        Stopped: ``stop`` was requested; published weights stay published.
    """
    with ExitStack() as stack:
        world = stack.enter_context(ranks.join_ranks(cfg))
        cfg = cfg.model_copy(update={"device": str(world.device)})  # device of this rank
        torch.manual_seed(cfg.seed)
        random.seed(cfg.seed)
        ended = end.end_file() if world.is_rank0 else None
        if ended is not None:
            end.forget(ended)
        connections = _connect(cfg, world, stop or StopSignal(), stack)
        state = _train(cfg, world, connections, stack)
        if connections.client is not None:
            connections.client.announce_version(state.version, ended=True)
        connections.waits.phase("done")
    if ended is not None:  # written after the last report and checkpoint
        end.record_end(ended, step=state.step, life=connections.waits.life)


def _connect(
    cfg: TrainingConfig, world: Ranks, stop: StopSignal, stack: ExitStack
) -> Connections:
    enter, name = stack.enter_context, f"atropos-grpo {cfg.model_name}"
    if world.is_rank0:
        record_plugins(cfg, Path(cfg.log_dir))
    if not world.is_rank0:
        waits = WaitReporter(stop, HeartbeatThread(lambda beat: None, name))
        return Connections(None, waits, None, None)
    beats = enter(closing(RolloutClient(cfg.atropos_url, timeout_s=HEARTBEAT_TIMEOUT_S)))
    screen = enter(
        closing(display.open_display(cfg.live_table, cfg.model_name, cfg.training_steps))
    )
    heartbeats = HeartbeatThread(display.relay(screen, beats.heartbeat), name)
    waits = WaitReporter(stop, enter(heartbeats))
    client = enter(
        closing(RolloutClient(cfg.atropos_url, on_wait=partial(waits, cause="api")))
    )
    reporter = enter(Reporter(cfg.atropos_url, lambda: client.generation, cfg.notes_rows))
    return Connections(client, waits, enter(MetricsLog(cfg, screen)), reporter)


def recovery_of(
    cfg: TrainingConfig,
    world: Ranks,
    max_token_len: int,
    counters: Mapping[str, Resumable] | None = None,
    waits: WaitReporter | None = None,
    vocab_size: int | None = None,
) -> Recovery:
    """The recovery of these settings; rows have at most ``max_token_len`` tokens.

    ``waits`` is that of the heartbeats of this process; None: there are none.
    """
    life = waits.life if waits else ""
    registration = cfg.registration(max_token_len, life=life, vocab_size=vocab_size)
    note = waits.note if waits else logger.info
    return Recovery(cfg, world, registration, cfg.checkpoint_identity, counters, note)


def _resume(
    models: TrainedModels,
    recovery: Recovery,
    publisher: Publisher,
    connections: Connections,
    agreement: Agreement,
) -> TrainerState:
    """Return the state to train from; servers, API and log are in agreement with it."""
    policy, client = models.policy, connections.client
    begins = recovery.begins(client)
    checks = publisher.cfg.check_rows > 0
    if begins and checks:  # refuse a wrong model or tokenizer first
        verify.check_start(policy, publisher, agreement)
    state = recovery.resume(client, policy, models.optimizer, models.critic)
    if begins and client is not None:  # the initial weights have a version as well
        publisher.begin(state.version)
        client.announce_version(state.version)
    # After a restart servers may hold any version, or parts of several. At the start of a run
    # they may need an adapter.
    if not begins or publisher.publishes_start:
        connections.waits.phase("publishing weights", step=state.step, version=state.version)
        publisher.publish(policy, state)
        if checks:
            verify.check_start(policy, publisher, agreement)
    if connections.log is not None:
        connections.log.begin(state.run_id, state.step)
    return state


def _resumables(
    exporter: ModelExporter, evaluator: Evaluator, models: TrainedModels
) -> dict[str, Resumable]:
    """Numbers that checkpoints hold, by name."""
    schedules = {"saver": exporter.frequency, "evaluator": evaluator.frequency}
    return {**schedules, "roles": models.baselines}


def _publish(
    policy: Policy,
    publisher: Publisher,
    prepared: Prepared,
    state: TrainerState,
    agreement: Agreement,
    clock: Clock,
    phase: Callable[..., None],
) -> Mapping[str, float]:
    """New weights to every server, then the comparison of logprobs: its metrics."""
    cfg = publisher.cfg
    due = state.step == 1 or state.step % cfg.check_every == 0
    sequences = verify.choose_rows(prepared.rows, cfg.check_rows if due else 0)
    prefixes = canary.canary_prefixes(sequences)
    with clock.measure("check"):
        canary.fill_prefix_caches(policy, publisher.fleet, prefixes)
    with clock.measure("publish"):
        publisher.publish(policy, state)
    phase("checking servers")
    with clock.measure("check"):
        return verify.check_published(
            policy, publisher, sequences, state.version, agreement, prefixes
        )


def _log_step(
    log: MetricsLog,
    reporter: Reporter | None,
    state: TrainerState,
    record: Mapping[str, Any],
    clock: Clock,
) -> None:
    """Write the metrics of a step to the log, and report the step to the API."""
    step = {"step": state.step, "version": state.version, **record, **clock.take()}
    if reporter is not None:
        step["reports_lost"] = reporter.lost
        reporter.step(state.step, step)
    log.write(step)


def _make_evaluator(
    cfg: EvaluatorSettings,
    policy: Policy,
    publisher: Publisher,
    peers: Connections,
    stack: ExitStack,
) -> Evaluator:
    """The evaluator, which ends what it runs when ``stack`` is left."""
    place = make_place(cfg, publisher, policy)
    evaluator = Evaluator(cfg, policy.world, peers.waits, place, peers.report_evaluation)
    peers.waits.pulse.follow_evaluation(evaluator.progress)
    return stack.enter_context(closing(evaluator))


def _end(
    exporter: ModelExporter,
    recovery: Recovery,
    models: TrainedModels,
    state: TrainerState,
    connections: Connections,
    evaluator: Evaluator,
) -> None:
    """Save the final model and the last recovery checkpoint; await the last evaluation."""
    phase, policy = connections.waits.phase, models.policy
    phase("saving checkpoint")
    exporter.final(policy, state)
    phase("saving for recovery")
    recovery.save_last_step(connections.client, policy, models.optimizer, models.critic)
    phase("evaluating")
    evaluator.finish()


def _train(
    cfg: TrainingConfig, world: Ranks, peers: Connections, stack: ExitStack
) -> TrainerState:
    client, waits, reporter = peers.client, peers.waits, peers.reporter
    clock, phase = Clock(), waits.phase
    phase("loading the model")
    models = load_models(cfg, world)
    policy, optimizer, critic = models.policy, models.optimizer, models.critic
    roster = connect.ServerRoster(cfg, waits, stack)  # servers start and load meanwhile
    servers = roster.connect_all(client, cfg.atropos_url) if client else []
    announce = client.announce_version if client else None
    publisher = stack.enter_context(closing(make_publisher(cfg, servers, announce, waits)))
    publisher.fleet.follow = roster.follow
    exporter = ModelExporter(cfg, world, adapter=cfg.trains_adapter)
    evaluator = _make_evaluator(cfg, policy, publisher, peers, stack)
    counters = _resumables(exporter, evaluator, models)
    recovery = recovery_of(
        cfg, world, policy.max_tokens_per_row, counters, waits, policy.vocab_size
    )
    phase("joining the run")
    agreement = Agreement.of(cfg.compute_dtype, cfg.max_logprob_mismatch)
    state = _resume(models, recovery, publisher, peers, agreement)
    take_steps = partial(learn, cfg, policy, optimizer, stop=waits.stop, critic=critic)
    stack.enter_context(recovery.saving_at_stop(client, policy, optimizer, critic))
    waits.checks.append(stack.enter_context(Keeper(publisher)).check)
    waits.pulse.servers = publisher.fleet.states
    left = cfg.training_steps - state.step
    claims = partial(BatchPrefetcher, batches=left, ahead=cfg.prefetch, lease_s=cfg.lease_s)
    prefetcher = stack.enter_context(claims(client, state, cfg.algorithms)) if client else None
    evaluator.at_start(state, publisher.fleet.urls)

    while state.step < cfg.training_steps:
        # A batch: whole groups, sequences_per_step rows, leased to this trainer.
        phase("waiting for batch", step=state.step, version=state.version)
        with clock.measure("wait"):
            claimed = next_batch(prefetcher, world, waits, cfg.batch_timeout_s)
        if claimed is None:  # every environment has ended
            break

        # Rows, advantages, steps. Baselines go by group id, not by place in the batch.
        phase("training")
        with clock.measure("prepare"):
            batch = training_rows(claimed.batch or [], cfg, policy, state)
            prepared = models.prepare(batch.rows, cfg, state.version)
        with clock.measure("train"):
            noted = None if cfg.notes_rows == 0 else TokenValues()  # alike on every rank
            learned = take_steps(prepared, state, values=noted, agreement=agreement)
        record = {**batch_metrics(claimed, batch, prepared, state.version), **learned}

        # Publish the new version to every server. Until the ack a stop signal is held back.
        state = replace(state, step=state.step + 1, batch_no=claimed.batch_no)
        if state.step % cfg.publish_every == 0 or state.step == cfg.training_steps:
            state = replace(state, version=state.step)
            phase("publishing weights", step=state.step, version=state.version)
            if prefetcher is not None:
                prefetcher.confirm(claimed)  # a trainer that was replaced publishes nothing
            record |= _publish(policy, publisher, prepared, state, agreement, clock, phase)
        if prefetcher is not None and reporter is not None:
            prefetcher.ack(claimed)
            reporter.batch(claimed, batch, prepared, noted)

        # The recovery checkpoint comes last: its steps are complete, later steps are repeated.
        epoch_ended = cfg.ends_epoch(state.step)
        phase("saving checkpoint", **mismatch_details(record, agreement))
        with clock.measure("save"):
            exporter.maybe(policy, state, epoch_ended)
        phase("evaluating")
        with clock.measure("evaluate"):
            record |= evaluator.maybe(state, epoch_ended, publisher.fleet.urls)
        if peers.log is not None:
            record |= publisher.fleet.counts() | recovery.take_figures()
            _log_step(peers.log, reporter, state, record, clock)
        phase("saving for recovery")
        with clock.measure("recovery"):  # the standstill; part of the next record
            if recovery.due(state, epoch_ended):
                recovery.save(client, policy, optimizer, state, critic)

    _end(exporter, recovery, models, state, peers, evaluator)
    return state


if __name__ == "__main__":
    ranks.end_process(run_training(partial(train, CONFIG)))

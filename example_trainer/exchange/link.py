"""The place of another project's trainer in a run: batches, weights, checkpoints.

link.next_rows() -> its steps -> link.done(weights) -> its checkpoint -> link.saved(directory)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from atroposlib.client import RolloutClient
from atroposlib.errors import ConfigError, RolloutApiUnavailable
from atroposlib.utils.io import sync_path
from atroposlib.wire import ClaimedBatch, ScoredData
from example_trainer.checkpoint.rewinding import rewind
from example_trainer.data.rows import TrainingBatch, to_rows
from example_trainer.distributed.ranks import Ranks
from example_trainer.model.model_dir import (
    TrainerState,
    read_state,
    write_model,
    write_state,
)
from example_trainer.model.policy import Policy
from example_trainer.run.connect import HeartbeatThread, ServerRoster, WaitReporter
from example_trainer.run.metrics_log import warn_once
from example_trainer.run.prefetch import BatchPrefetcher, next_batch
from example_trainer.settings.config import TrainingConfig
from example_trainer.state import StopSignal
from example_trainer.weights.disk import DiskPublisher
from example_trainer.weights.publisher import Keeper

HELD = "rollout_api"  # folder of a checkpoint with the number of its last batch
HEARTBEAT_TIMEOUT_S = 2.0


def held_by(checkpoint: Path | None) -> TrainerState:
    """The state that a checkpoint was noted with; None: before the first batch.

    Raises:
        ConfigError: :meth:`Link.saved` was not called for it.
    """
    if checkpoint is None:
        return TrainerState("", 0, 0, None)
    held = read_state(str(checkpoint / HELD))
    if held is None:
        raise ConfigError(f"{checkpoint} has no folder {HELD}: continue from one that has it")
    return held


@dataclass(frozen=True)
class ModelWeights:
    """The weights to publish: a model of transformers, and its tensors whole, by its names."""

    model: Any
    tokenizer: Any
    tensors: Mapping[str, Any]
    world: Ranks = Ranks.single()  # the publisher sees a single process


class _WholeModel(DiskPublisher):
    def stage(self, policy: Policy, state: TrainerState) -> Path:
        weights, directory = cast(ModelWeights, policy), self.directory(state)
        write_model(
            directory,
            weights.model,
            weights.tokenizer,
            weights.tensors,
            state,
            dtype=weights.model.dtype,
            untie_head=self.needs_untying(policy),
            durable=False,
        )
        return directory


class Link:
    """Connections of the first process of a trainer. Not thread-safe.

    Registers, and rewinds the API to ``held``: batches trained after it come again.

    Args:
        settings: of the trainer, by their names in CONFIG.md.
        held: the state of the loaded weights, by :func:`held_by`.
        checkpoints: the folder of its checkpoints.

    Raises:
        RunTaken: another trainer of the run is alive.
        CannotRewind: the API freed batches that these weights have not seen.
        InferenceUnavailable: a server did not answer in time.
        ConfigError: the settings name an algorithm per environment.
    """

    def __init__(
        self, settings: Mapping[str, Any], held: TrainerState, checkpoints: Path
    ) -> None:
        self._cfg = cfg = TrainingConfig(**settings)
        if cfg.algorithms:
            raise ConfigError(
                "algorithms: the loss is that of the other project's trainer, for all environments;"
                " leave them out, or train by atropos-grpo"
            )
        with ExitStack() as stack:
            enter, url = stack.enter_context, cfg.atropos_url
            beats = enter(closing(RolloutClient(url, timeout_s=HEARTBEAT_TIMEOUT_S)))
            pulse = HeartbeatThread(beats.heartbeat, f"{cfg.run_name or ''} {cfg.model_name}")
            self.waits = WaitReporter(StopSignal(), enter(pulse))
            self._client = enter(
                closing(RolloutClient(url, on_wait=partial(self.waits, cause="api")))
            )
            roster = ServerRoster(cfg, self.waits, stack)
            servers = roster.connect_all(self._client, url)
            for server in servers:
                server.require("disk", None)
            announce = self._client.announce_version
            self._publisher = enter(closing(_WholeModel(cfg, servers, announce, self.waits)))
            self._publisher.fleet.follow = roster.follow
            self.waits.phase("joining the run")
            self.state = self._join_run(held, checkpoints)
            self.waits.checks.append(enter(Keeper(self._publisher)).check)
            pulse.servers = self._publisher.fleet.states
            left = cfg.training_steps - self.state.step
            claims = partial(BatchPrefetcher, batches=left, ahead=False, lease_s=cfg.lease_s)
            self._prefetcher = enter(claims(self._client, self.state))
            self.batch: ClaimedBatch | None = None  # batch in training
            self._stack = stack.pop_all()

    def _join_run(self, held: TrainerState, checkpoints: Path) -> TrainerState:
        cfg = self._cfg
        registered = self._client.register(
            cfg.registration(
                cfg.seq_len,
                checkpoint_dir=str(checkpoints),
                starting_step=held.step,
                commits=True,
                holds=held.batch_no or 0,
                life=self.waits.life,
            )
        )
        state = replace(
            held,
            run_id=registered.run_id,
            incarnation=registered.incarnation,
            starts=registered.starts,
        )
        rewind(self._client, state)
        self._commit(state)  # the trainer that wrote the checkpoint perhaps did not
        return state

    def publish(self, weights: ModelWeights) -> None:
        """Every server holds the weights when this returns. Call it once before the first batch."""
        self.waits.phase("publishing weights", step=self.state.step)
        self._publisher.publish(cast(Policy, weights), self.state)

    def next_rows(self) -> tuple[Sequence[ScoredData], TrainingBatch]:
        """The groups of the next batch and their rows; leased until :meth:`done`.

        Raises:
            RolloutApiUnavailable: none within ``batch_timeout_s``; names what was missing.
            InvalidGroup: tokens without the logprobs of their sampler.
        """
        cfg = self._cfg
        self.waits.phase("waiting for batch", step=self.state.step)
        alone, bound_s = Ranks.single(), cfg.batch_timeout_s
        self.batch = next_batch(self._prefetcher, alone, self.waits, bound_s)
        if self.batch is None:
            raise RolloutApiUnavailable("every environment has ended, and no batch is left")
        self.waits.phase("training")
        groups = self.batch.batch or []
        rows = to_rows(
            groups,
            cfg.seq_len,
            unknown_temperature=cfg.unknown_temperature,
            incarnation=self.state.incarnation,
            starts=self.state.starts,
        )
        for note in sorted(rows.notes):
            warn_once(note)
        return groups, rows

    def done(self, weights: ModelWeights) -> None:
        """All steps on the batch are done: publish the next version, then ack.

        Raises:
            StaleGeneration: another trainer took over; nothing was published.
        """
        assert self.batch is not None
        self._prefetcher.confirm(self.batch)
        step, batch_no = self.state.step + 1, self.batch.batch_no
        self.state = replace(self.state, step=step, version=step, batch_no=batch_no)
        self.publish(weights)
        self._prefetcher.ack(self.batch)
        self.batch = None

    def saved(self, checkpoint: Path) -> None:
        """Note the last batch in a written checkpoint; the API may then free the batches in it."""
        folder = checkpoint / HELD
        folder.mkdir(exist_ok=True)
        write_state(folder, self.state)
        for path in (*checkpoint.rglob("*"), checkpoint, checkpoint.parent):
            sync_path(path)
        self._commit(self.state)

    def _commit(self, state: TrainerState) -> None:
        if state.batch_no:
            self._client.commit(state.batch_no)

    def close(self) -> None:
        self._stack.close()

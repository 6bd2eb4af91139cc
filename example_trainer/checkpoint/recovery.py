"""Recovery of an interrupted trainer, so that no batch is trained twice or skipped.

    step -> publish -> check -> ack -> saver -> evaluator -> log -> copy to main memory -> next step
                                                                           '-> write -> commit

A recovery checkpoint holds weights, optimizer, random state and, in the same atomic directory,
the number of the last batch the weights were trained on. It comes last: a step in it is
complete, and a step that is not in it is repeated with its saved model, its evaluation and its
line in the metrics. Every rank copies its shards and writes them while training goes on
(``writer``); the next checkpoint waits for its predecessor. At the start:

    checkpoint of this run      load it; rewind the API to its batch, so that what came later
                                is delivered again, in its order
    ... of another run          (the API was started anew) go on with its weights and its
                                optimizer; the new queue is trained on from its beginning
    ... of another run, over,   it moves aside to recover_<run>, and training begins with
        or with new settings    ``model_name``
    none                        begin with ``model_name``. If the trainer published that in
                                this run, at its batch, else at the very first batch

A checkpoint is committed, so that the API may free its batches, when it is on disk as a whole
and the oldest of the ``keep_recover`` kept. If the newest is damaged, every batch after the
previous checkpoint is thus still available.

The learning rate is a function of the step and needs no saved state. With ``publish_every``
above 1 the version after a restart is the step of the checkpoint, because version k always
labels the weights after step k.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from atroposlib.client import RolloutClient
from atroposlib.errors import CannotRewind, ConfigError, RankLost, RunChanged
from atroposlib.wire import Registration
from example_trainer.checkpoint import random_state
from example_trainer.checkpoint.rewinding import BEGIN, rewind
from example_trainer.checkpoint.shards import HostCopies
from example_trainer.checkpoint.snapshots import STATE, Snapshot, Snapshots
from example_trainer.checkpoint.start import (
    StartingPoint,
    choose_start,
    state_document,
    state_in,
)
from example_trainer.checkpoint.writer import SnapshotWriter
from example_trainer.distributed import collectives
from example_trainer.distributed.collectives import gather_objects, run_on_rank0
from example_trainer.distributed.ranks import Ranks
from example_trainer.model import state_dict
from example_trainer.model.model_dir import TrainerState, tidy
from example_trainer.model.policy import Policy
from example_trainer.settings.run import RunSettings
from example_trainer.state import Frequency, Resumable, StoppedBetweenSteps
from example_trainer.update.optimizer import load_optimizer_state, optimizer_state
from example_trainer.update.step import Critic

logger = logging.getLogger(__name__)
RETRY_VARIABLE = "ATROPOS_RUN_ID"  # set by the launcher: number of restarts of this trainer
EVERY_S = 600.0  # default if the settings give no frequency


class Recovery:
    """Writes and reads ``save_path/recover``. All methods are collective.

    Args:
        registration: of this trainer, at step 0.
        identity: settings that determine which tensors a checkpoint holds and their meaning.
            It loads only under equal settings.
        counters: of the saver, the evaluator and the roles, by name; they go on as well.
        note: called with the name of a wait in which a stop is not safe.
    """

    def __init__(
        self,
        cfg: RunSettings,
        world: Ranks,
        registration: Registration,
        identity: Mapping[str, Any],
        counters: Mapping[str, Resumable] | None = None,
        note: Callable[[str], None] = lambda what: None,
    ) -> None:
        self._cfg, self._world = cfg, world
        self._registration, self._identity = registration, dict(identity)
        self.enabled = cfg.recover_mode != "disabled"
        epochs, steps = cfg.recover_every_epochs, cfg.recover_every_steps
        seconds = cfg.recover_every_s
        if epochs is None and steps is None and seconds is None:
            seconds = EVERY_S
        self._frequency = Frequency(epochs, steps, seconds, since_s=time.time())
        self._counters: dict[str, Resumable] = {
            "recovery": self._frequency,
            **(counters or {}),
        }
        self._plan: StartingPoint | None = None
        # Of the last step, until its copy is taken for a checkpoint.
        self._unsaved: TrainerState | None = None
        self._snapshots = Snapshots(Path(cfg.save_path) / "recover", cfg.keep_recover)
        self._copies = HostCopies()
        self._writer = SnapshotWriter(world, self._snapshots, note)

    # --- writing ----------------------------------------------------------------------

    def due(self, state: TrainerState, epoch_ended: bool) -> bool:
        """Whether a checkpoint is due after this step; call once per step.

        Raises CheckpointError if the previous checkpoint could not be written, and
        StaleGeneration if another trainer took the run over meanwhile.
        """
        if not self.enabled:
            return False
        self._unsaved = state

        def decide() -> bool:
            self._writer.check()
            fires = self._frequency.due(epoch_ended, time.time())
            return fires or state.step >= self._registration.num_steps

        return run_on_rank0(self._world, decide)

    def save(
        self,
        client: RolloutClient | None,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        state: TrainerState,
        critic: Critic | None = None,
    ) -> None:
        """Copy the state to main memory and begin to write it, once the last write has ended.

        When the checkpoint is whole on disk, the API may free the batches of the oldest
        checkpoint kept. Until then it counts as not written: a crash goes back to its
        predecessor.

        Raises:
            CheckpointError: the disk refused this or the last checkpoint; earlier checkpoints
                are unchanged.
            StaleGeneration: another trainer took the run over.
        """
        self._writer.finish()
        tensors: dict[str, Mapping[str, torch.Tensor]] = {}
        documents: dict[str, Any] = {}
        for prefix, model, its_optimizer in _models(policy, optimizer, critic):
            tensors[f"{prefix}weights"] = state_dict.trained_shards(model)
            held, scalars = optimizer_state(its_optimizer, model)
            tensors[f"{prefix}optimizer"] = held
            documents[f"{prefix}optimizer"] = scalars
        documents["rng"] = gather_objects(self._world, random_state.capture_rng())
        counters = {name: counter.state() for name, counter in self._counters.items()}
        documents[STATE] = state_document(state, self._identity, counters)
        shards = self._copies.take(tensors, self._world)
        on_whole = partial(self._commit, client, state)
        self._writer.start(state.step, shards, documents, on_whole)
        self._unsaved = None

    def save_last_step(
        self,
        client: RolloutClient | None,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        critic: Critic | None = None,
    ) -> None:
        """Write a checkpoint of the last step if it has none, and finish; raises as :meth:`save`."""
        if self._unsaved is not None:
            self.save(client, policy, optimizer, self._unsaved, critic)
        self.finish()

    def finish(self) -> None:
        """Wait until the last checkpoint is whole on disk; raises as :meth:`save`."""
        self._writer.finish()

    def take_figures(self) -> dict[str, float]:
        """Return seconds and bytes of a checkpoint that was written since the last call."""
        return self._writer.take_figures()

    @contextmanager
    def saving_at_stop(
        self,
        client: RolloutClient | None,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        critic: Critic | None = None,
    ) -> Iterator[None]:
        """Write a checkpoint of the last step if a signal ends the wait for the next batch.

        A trainer that is started again then repeats no step. At any other end a checkpoint
        that is being written is finished within a bound. Raises as :meth:`save`.
        """
        try:
            yield
        except StoppedBetweenSteps:
            self.save_last_step(client, policy, optimizer, critic)
            raise
        except RankLost:
            self._writer.close(0.0)  # its report will not come
            raise
        finally:
            self._writer.close()

    def _commit(self, client: RolloutClient | None, state: TrainerState) -> None:
        assert client is not None
        if batch_no := self._committed_batch(state):
            client.commit(batch_no)

    def _committed_batch(self, state: TrainerState) -> int:
        """Return the last batch contained in every possible fallback; 0 for none."""
        kept = self._snapshots.kept_checkpoints(state.step)
        if len(kept) < self._cfg.keep_recover:
            return 0  # the initial weights are a fallback too
        numbers = []
        for path in kept:
            held = state_in(Snapshot(path))
            numbers.append((held.batch_no or 0) if held.run_id == state.run_id else 0)
        return min(numbers)

    # --- reading ----------------------------------------------------------------------

    def begins(self, client: RolloutClient | None) -> bool:
        """Whether no trainer ran before in this run, so that servers hold the initial weights.

        If not, they may hold any version: publish before the first batch. Nothing is
        registered or rewound yet. Raises as :meth:`resume`.
        """

        def look() -> bool:
            assert client is not None
            self._plan = self._look(client)
            return not self._plan.run_id and not self._plan.state.step

        return run_on_rank0(self._world, look)

    def resume(
        self,
        client: RolloutClient | None,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        critic: Critic | None = None,
    ) -> TrainerState:
        """Register with the run and load the state saved by an earlier process of this
        trainer.

        Unless :meth:`begins` was true before, servers may hold different weights: publish the
        loaded weights before the first batch.

        Args:
            client: of the first rank; None on the remaining ranks.

        Raises:
            ConfigError: the checkpoint's settings differ, or ``resume`` finds no checkpoint.
            CannotRewind: the API has freed batches that these weights have not seen.
            RunTaken: another trainer of this run is alive. In both cases it goes on.
            CheckpointError: a file of it cannot be read.
        """

        def choose() -> str | None:
            assert client is not None
            self._plan = self._plan or self._look(client)
            snapshot = self._plan.snapshot
            return None if snapshot is None else str(snapshot.directory)

        def join() -> dict[str, Any]:
            assert client is not None
            return asdict(self._join(client))

        # Before the registration: a trainer that cannot continue must not fence another.
        directory = run_on_rank0(self._world, choose)
        if directory is not None:
            self._load(Snapshot(Path(directory)), policy, optimizer, critic)
        return TrainerState(**run_on_rank0(self._world, join))

    def _join(self, client: RolloutClient) -> TrainerState:
        """Register where training starts, and rewind the API to it. First rank only."""
        plan = self._plan or self._look(client)
        self._plan = None
        start: dict[str, Any] = {"starting_step": plan.state.step}
        if self.enabled:
            start["holds"] = plan.state.batch_no or 0
        try:
            registered = client.register(self._registration.model_copy(update=start))
        except CannotRewind as error:
            raise CannotRewind(f"{error}. {BEGIN}") from error
        if plan.run_id not in ("", registered.run_id):
            raise RunChanged("the rollout API was reset just now: start the trainer again")
        state = replace(
            plan.state,
            run_id=registered.run_id,
            incarnation=registered.incarnation,
            starts=registered.starts,
        )
        if self.enabled:
            rewind(client, state)
            # Again: a trainer that is killed or fenced after it wrote the checkpoint committed
            # nothing, and its batches could fill the store before the next checkpoint.
            self._commit(client, state)
            # Checkpoints there are of another run, or of this run before it restarted from the
            # beginning.
            if plan.snapshot is None and (aside := self._snapshots.set_aside()):
                logger.info(f"training begins anew; earlier recovery checkpoints: {aside}")
        if state.step:
            logger.info(
                f"continuing at step {state.step}{_name_differences(plan.state, state)}"
            )
        return state

    def _look(self, client: RolloutClient) -> StartingPoint:
        """Choose the starting point; removes only the leftovers of a killed writer."""
        tidy(Path(self._cfg.save_path))
        snapshot = self._snapshots.newest() if self._reads() else None
        if snapshot is None and self._cfg.recover_mode == "resume":
            raise ConfigError(
                f"recover_mode resume found no whole checkpoint in {self._snapshots.directory};"
                " check save_path, or begin with recover_mode auto"
            )
        run_id = client.status().run_id
        steps = self._registration.num_steps
        return choose_start(self._cfg, self._identity, steps, run_id, snapshot)

    def _reads(self) -> bool:
        if self._cfg.recover_mode == "fault":
            started_anew = os.environ.get(RETRY_VARIABLE, "")
            return started_anew.isdigit() and int(started_anew) > 0
        return self.enabled

    def _load(
        self,
        snapshot: Snapshot,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        critic: Critic | None,
    ) -> None:
        models = _models(policy, optimizer, critic)

        def documents() -> dict[str, Any]:
            names = [f"{prefix}optimizer" for prefix, _, _ in models]
            return {name: snapshot.document(name) for name in (*names, "rng", STATE)}

        held = run_on_rank0(self._world, documents)
        # Each rank reads its slices; without a common disk rank 0 reads and broadcasts.
        here = snapshot.directory.is_dir()
        everywhere = all(collectives.gather_flags(self._world, here))
        reads = everywhere or self._world.is_rank0
        for prefix, model, its_optimizer in models:
            weights = snapshot.tensors(f"{prefix}weights") if reads else {}
            state_dict.load_full_weights(model, weights, everywhere=everywhere)
            moments = snapshot.tensors(f"{prefix}optimizer") if reads else {}
            scalars = held[f"{prefix}optimizer"]
            load_optimizer_state(its_optimizer, model, moments, scalars, everywhere=everywhere)
        # More ranks than at the save: the new ranks have no saved state.
        if self._world.rank < len(held["rng"]):
            random_state.restore_rng(held["rng"][self._world.rank])
        for name, counter in self._counters.items():
            if name in held[STATE]["counters"]:
                counter.restore(held[STATE]["counters"][name])


def _models(
    policy: Policy, optimizer: torch.optim.Optimizer, critic: Critic | None
) -> list[tuple[str, Any, torch.optim.Optimizer]]:
    """Return (file prefix, model, optimizer) of every trained model."""
    models: list[tuple[str, Any, torch.optim.Optimizer]] = [("", policy, optimizer)]
    if critic is not None:
        models.append(("critic_", critic.model, critic.optimizer))
    return models


def _name_differences(found: TrainerState, state: TrainerState) -> str:
    if found.run_id != state.run_id:
        return (
            f" of run {found.run_id[:8]}, in a new run: its queue is trained on from the"
            " beginning (another save_path or recover_mode disabled begins anew)"
        )
    return f" of this run, after batch {state.batch_no or 0}"

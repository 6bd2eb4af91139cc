"""``BaseEnv``, the base class of every environment.

An environment overrides ``setup``, ``get_next_item``, ``collect_trajectory`` (one sample)
or ``collect_trajectories`` (a group), ``evaluate``, and seldom anything else.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Union

from atroposlib.envs.attributes import RuntimeAttribute, RuntimeSlot
from atroposlib.envs.cli import EnvCommand, command_class, main as run_command_line
from atroposlib.envs.journal.stored_samples import RowForm
from atroposlib.envs.rollout.group_file import GroupFile
from atroposlib.envs.rollout.groups import ScoredDataGroup, ScoredDataItem, groups_in
from atroposlib.envs.rollout.samples import collect_group, scored_when_full
from atroposlib.envs.runtime import checkpoint, evaluation
from atroposlib.envs.runtime.env_runtime import EnvRuntime, ReadyServers, name_of
from atroposlib.envs.runtime.metrics_logger import rollout_table
from atroposlib.envs.runtime.process import run_process
from atroposlib.envs.runtime.serve import Serve
from atroposlib.envs.settings.config import SLOT, BaseEnvConfig, EvalHandlingEnum
from atroposlib.envs.settings.readable import readable
from atroposlib.generation.configs import (
    APIServerConfig,
    OpenaiConfig,
    ServerBaseline,
    ServerConfigs,
    ServerManagerConfig,
)
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.routing.manager import ServerManager
from atroposlib.generation.sampling.reasoning import ReasoningConfig
from atroposlib.trackers import require_tracker
from atroposlib.type_definitions import Item
from atroposlib.utils.tokenizers.loading import load_tokenizer_named

__all__ = [
    "APIServer",
    "APIServerConfig",
    "BaseEnv",
    "BaseEnvConfig",
    "EvalHandlingEnum",
    "Item",
    "OpenaiConfig",
    "ScoredDataGroup",
    "ScoredDataItem",
    "ServerBaseline",
    "ServerManager",
    "ServerManagerConfig",
]


Durations = list[float]  # seconds
ScoredGroups = Union[
    ScoredDataGroup, list[ScoredDataGroup | None], list[ScoredDataGroup], None
]


class BaseEnv(ABC):
    """An environment: items, rollouts, rewards and evaluation.

    Every further name belongs to the subclass: the library neither reads nor sets it.

    Raises at construction:
        ConfigError: the servers or the settings cannot be used.
    """

    name: str | None = None
    env_config_cls: type[BaseEnvConfig] = BaseEnvConfig
    server_cls: ClassVar[type[APIServer]] = APIServer  # type: ignore[type-abstract]  # by server_type
    server: ServerManager
    _atropos = RuntimeSlot(EnvRuntime)

    curr_step = RuntimeAttribute[int]("joined_run.step")
    max_token_len = RuntimeAttribute[int]("joined_run.max_token_len")
    env_id = RuntimeAttribute[int | None]("joined_run.env_id")
    checkpoint_dir = RuntimeAttribute[str]("joined_run.checkpoint_dir")
    checkpoint_interval = RuntimeAttribute[int]("joined_run.checkpoint_interval")
    wandb_prepend = RuntimeAttribute[str | None]("joined_run.name")
    wandb_project = RuntimeAttribute[str | None]("joined_run.project")
    wandb_group = RuntimeAttribute[str | None]("joined_run.group")
    status_dict = RuntimeAttribute[dict[str, Any]]("joined_run.status_dict")
    items_sent_this_step = RuntimeAttribute[int]("group_stats.kept_since_log")
    rollouts_for_wandb = RuntimeAttribute[list[list[tuple[Any, ...]]]](
        "metrics_logger.rollouts"
    )
    completion_lengths = RuntimeAttribute[list[int]]("metrics_logger.completion_lengths")
    task_duration = RuntimeAttribute[Durations]("metrics_logger.task_duration")
    task_successful = RuntimeAttribute[list[int]]("metrics_logger.task_successful")
    succeeded_task_duration = RuntimeAttribute[Durations](
        "metrics_logger.succeeded_task_duration"
    )
    failed_task_duration = RuntimeAttribute[Durations]("metrics_logger.failed_task_duration")
    mainloop_timings = RuntimeAttribute[Durations]("metrics_logger.mainloop_timings")
    workers_added_list = RuntimeAttribute[list[int]]("metrics_logger.workers_added_list")
    eval_runner = RuntimeAttribute[asyncio.Task[None] | None]("periodic_evaluation.task")
    workers = RuntimeAttribute[set[asyncio.Task[Any]]]("pool.tasks")
    running_items = RuntimeAttribute[dict[str, dict[str, Any]]]("pool.running")
    backlog = RuntimeAttribute[deque[Any]]("pool.backlog", deque)
    eval_workers = RuntimeAttribute[set[asyncio.Task[Any]]]("eval_workers")
    jsonl_writer = RuntimeAttribute[GroupFile | None]("group_file")
    max_num_workers = RuntimeAttribute[int]("max_num_workers")
    last_completed_item = RuntimeAttribute[Item | None]("last_completed_item")
    process_mode = RuntimeAttribute[bool]("process_mode")
    n_groups_to_process = RuntimeAttribute[int]("n_groups_to_process")
    group_size_to_process = RuntimeAttribute[int]("group_size_to_process")

    def __init__(
        self,
        config: BaseEnvConfig,
        server_configs: ServerConfigs,
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        settings = readable(config)
        for tracker in settings.trackers:
            require_tracker(tracker)
        # The command line asked its servers for names already, and makes no further servers.
        prepared = vars(self).pop(SLOT, None) or ReadyServers(
            ServerManager(
                server_configs,
                slurm=slurm,
                testing=testing,
                server_class=self.server_cls,
                reasoning_config=ReasoningConfig.from_env_config(settings),
            )
        )
        self.config = config.model_copy()
        self.server = prepared.server
        vars(self).pop("tokenizer", None)  # set before this constructor
        if prepared.tokenizer is not None:
            self.tokenizer = prepared.tokenizer
        runtime = type(self)._atropos(self)
        vars(self)[SLOT] = runtime
        if runtime.group_file is not None:
            self.config.data_path_to_save_groups = str(runtime.group_file.path)

    @cached_property
    def tokenizer(self) -> Any:
        """The trained model's tokenizer, loaded at the first use; may be set instead.

        Raises ConfigError: it cannot be loaded.
        """
        return load_tokenizer_named(self.config.tokenizer_name)

    @property
    def derived_batch_size(self) -> int:
        """Sequences of each batch that this environment may fill."""
        return self._atropos.derived_batch_size()

    # --- for authors to override ------------------------------------------------------

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, ServerConfigs]:
        """Defaults of this environment, which the YAML file and flags override."""
        return cls.env_config_cls(), ServerBaseline()

    async def setup(self) -> None:
        """Load data and resources; called once, before the first item."""
        raise NotImplementedError(f"{type(self).__name__} must override setup")

    @abstractmethod
    async def get_next_item(self) -> Item | None:
        """Return the next item to roll out, or None if there is none now."""

    async def collect_trajectory(self, item: Item) -> tuple[ScoredDataItem | None, list[Item]]:
        """Return a scored sample of ``item``, and further items for the backlog.

        A sample that is None or raises has failed and is drawn again.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must override collect_trajectory or collect_trajectories"
        )

    async def collect_trajectories(self, item: Item) -> tuple[ScoredGroups, list[Item]]:
        """Return a scored group or several of ``item``, and items for the backlog.

        None means that this item has no training data.
        """
        count_failure, journal = self._atropos.group_stats.sample_failed, self._atropos.journal
        score = self._atropos.config.context_full_score or 0.0
        sample = scored_when_full(self.collect_trajectory, score, count_failure)
        return await collect_group(
            lambda item: journal.kept_or_drawn(lambda: sample(item), RowForm()),
            item,
            self.config.group_size,
            count_failure,
            self.collect_trajectory,
        )

    async def postprocess_histories(self, trajectories: Any) -> Any:
        """Filter or score the collected groups; returns the same type."""
        return trajectories

    @abstractmethod
    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Measure the model, then ``await self.evaluate_log(metrics, ...)``."""

    async def cleanup(self) -> None:
        """Release resources of a rollout; called after every rollout, also failed and cancelled."""

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        """Save ``data``; override with ``super().save_checkpoint(step, {"iter": self.iter})``."""
        run = self._atropos.joined_run
        curriculum = self._atropos.curriculum.checkpoint()
        if curriculum:
            data = {**(data or {}), checkpoint.CURRICULUM: curriculum}
        if data is not None and run.checkpoint_dir:
            checkpoint.save(run.checkpoint_dir, run.name or run.label(), step, data)

    def load_checkpoint(self) -> None:
        """Restore the newest state saved at or before ``curr_step``.

        Restores attributes of the environment only: unknown names and names of the runtime are
        skipped.
        """
        run = self._atropos.joined_run
        if not run.checkpoint_dir:
            return
        newest = checkpoint.newest(run.checkpoint_dir, run.name or run.label(), run.step)
        if newest is not None:
            if curriculum := newest.pop(checkpoint.CURRICULUM, None):
                self._atropos.curriculum.restore_checkpoint(curriculum)
            checkpoint.restore(self, newest)

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Emit ``wandb_metrics`` and the runtime's; an override awaits this at its end."""
        runtime, metrics = self._atropos, self._atropos.metrics_logger
        emitted = dict(wandb_metrics or {})
        emitted.update(metrics.averages())
        emitted.update(runtime.curriculum.metrics())
        emitted.update(metrics.training_metrics(runtime.group_stats, runtime.pool.counts))
        emitted = self.perf_stats(emitted)
        emitted.update(await self.server.wandb_metrics())
        if metrics.shows_tables:
            emitted = await self.create_rollout_table(emitted)
        metrics.drop_rollouts()
        metrics.emit(emitted, runtime.joined_run.step)

    async def add_rollouts_for_wandb(
        self, scored_data: ScoredDataGroup | list[ScoredDataGroup], item: Item | None = None
    ) -> None:
        """Record the text and score of some sequences for the table of rollouts."""
        metrics = self._atropos.metrics_logger
        if not metrics.shows_tables:
            return
        shown = self.config.num_rollouts_per_group_for_logging
        for group in groups_in(scored_data):
            count = len(group["tokens"]) if shown == -1 else min(shown, len(group["tokens"]))
            rows = [
                (self.tokenizer.decode(group["tokens"][i]), group["scores"][i])
                for i in range(count)
            ]
            metrics.add_rollouts(rows, self.config.num_rollouts_to_keep)

    async def create_rollout_table(self, wandb_metrics: dict[str, Any]) -> dict[str, Any]:
        """Add the table of rollouts to ``wandb_metrics``."""
        if rollouts := self._atropos.metrics_logger.rollouts:
            wandb_metrics["train/rollouts"] = rollout_table(rollouts)
        return wandb_metrics

    def perf_stats(self, metrics_dict: dict[str, Any]) -> dict[str, Any]:
        """Add the durations since the last call to ``metrics_dict``, as ``train_perf/*``."""
        metrics_dict.update(self._atropos.metrics_logger.performance_metrics())
        return metrics_dict

    # --- steps of serve, for authors to extend and to call ----------------------------

    async def register_env(self) -> None:
        """Wait for the trainer and join its run."""
        if (serving := self._atropos.serving) is not None:
            await serving.register()

    async def get_server_info(self) -> None:
        """Follow the sizes of the trainer's batches."""
        if (serving := self._atropos.serving) is not None:
            await serving.registration.refresh()

    async def setup_wandb(self) -> None:
        """Record in the trackers of the settings, under the names of the run."""
        if (serving := self._atropos.serving) is not None:
            await serving.open_trackers()

    async def get_status(self) -> None:
        """Read queue, step and weight into ``status_dict``."""
        if (serving := self._atropos.serving) is not None:
            await serving.read_status()

    async def env_step_checks(self) -> None:
        """Do what a new trainer step makes due: evaluation, checkpoint, metrics."""
        if (serving := self._atropos.serving) is not None:
            await serving.step_checks()

    async def add_train_workers(self) -> None:
        """Start as many rollouts as are wanted now."""
        if (serving := self._atropos.serving) is not None:
            await serving.add_workers()

    async def handle_env(self, item_uuid: str) -> list[ScoredDataGroup]:
        """Roll out an item of ``running_items``; return the groups that it gave."""
        return await self._atropos.handle(item_uuid)

    async def handle_send_to_api(
        self,
        scored_data: ScoredDataGroup | Sequence[ScoredDataGroup | None] | None,
        item: Item | None = None,
        do_send_to_api: bool = True,
        abort_on_any_max_length_exceeded: bool = True,
    ) -> list[ScoredDataGroup]:
        """Accept or reject each group, save, send and return the accepted groups."""
        return await self._atropos.accept(
            scored_data,
            item,
            sending=do_send_to_api,
            drop_too_long=abort_on_any_max_length_exceeded,
        )

    # --- for authors to call ----------------------------------------------------------

    def log(self, name: str, value: float) -> None:
        """Record a number; its mean is emitted with the next metrics."""
        self._atropos.metrics_logger.log(name, value)

    async def evaluate_log(
        self,
        metrics: dict[str, Any],
        task_name: str | None = None,
        model_name: str | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
        generation_parameters: dict[str, Any] | None = None,
        samples: list[dict[str, Any]] | None = None,
        verbose: bool = True,
        stderr: Mapping[str, float] | None = None,
    ) -> None:
        """Record evaluation results with their step and policy version.

        Results always go to the metrics. With ``data_dir_to_save_evals`` they are written to
        files, in ``serve`` to a directory per step. ``verbose`` prints a table, with the
        standard errors of the metrics in ``stderr``. Times are seconds since the epoch.
        """
        runtime, step = self._atropos, self._atropos.joined_run.step
        measured_at = runtime.measured_at()
        runtime.metrics_logger.emit({**evaluation.eval_metrics(metrics), **measured_at}, step)
        samples_path = runtime.config.samples_path
        if samples_path is not None and samples is not None:
            evaluation.append_samples(Path(samples_path), samples, step)
        directory: Path | None = None
        if self.config.data_dir_to_save_evals is not None:
            directory = Path(self.config.data_dir_to_save_evals)
            if measured_at:
                directory = directory / f"step-{measured_at['eval_step']}"
        params = {"max_new_tokens": self.config.max_token_length}
        named = getattr(self.config, "model_name", None)
        evaluation.report_results(
            directory,
            metrics,
            task=task_name or f"{name_of(self) or type(self).__name__}_eval",
            model_name=model_name or named or runtime.served_model_name(),
            start_time=start_time,
            end_time=end_time,
            generation_parameters={**params, **(generation_parameters or {})},
            samples=samples,
            measured_at=measured_at,
            verbose=verbose,
            stderr=stderr,
        )

    @classmethod
    def cli(cls) -> None:
        """Run the subcommand of the command line: serve, process or evaluate."""
        run_command_line(cls)

    @classmethod
    def get_cli_serve_config_cls(cls) -> type[EnvCommand]:
        """The subcommand ``serve``, for a program that calls pydantic-cli directly."""
        return command_class(cls, "serve")

    @classmethod
    def get_cli_process_config_cls(cls) -> type[EnvCommand]:
        """The subcommand ``process``."""
        return command_class(cls, "process")

    @classmethod
    def get_cli_evaluate_config_cls(cls) -> type[EnvCommand]:
        """The subcommand ``evaluate``."""
        return command_class(cls, "evaluate")

    async def env_manager(self) -> None:
        """Run ``serve``: roll out for a trainer until the run is complete."""
        serving = Serve(self._atropos)
        self._atropos.begin_serving(serving)
        await serving.run()

    async def process_manager(self) -> int:
        """Run ``process``: write groups to a file and return their number."""
        self._atropos.begin_process()
        self.config.group_size = self._atropos.group_size_to_process
        return await run_process(self._atropos)

    async def close(self) -> None:
        """Close files, metrics and connections; an override awaits this at its end."""
        await self._atropos.release()

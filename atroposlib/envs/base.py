"""``BaseEnv``, the base class of every environment.

An environment overrides ``setup``, ``get_next_item``, ``collect_trajectory`` (one sample)
or ``collect_trajectories`` (a group), ``evaluate``, and seldom anything else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atroposlib.envs.cli import EnvCommand, command_class
from atroposlib.envs.cli import main as run_command_line
from atroposlib.envs.rollout.groups import ScoredDataGroup, ScoredDataItem, groups_in
from atroposlib.envs.rollout.samples import collect_group, scored_when_full
from atroposlib.envs.runtime import checkpoint, evaluation
from atroposlib.envs.runtime.env_runtime import EnvRuntime
from atroposlib.envs.runtime.metrics_logger import rollout_table
from atroposlib.envs.runtime.process import run_process
from atroposlib.envs.runtime.serve import Serve
from atroposlib.envs.settings.config import BaseEnvConfig, EvalHandlingEnum
from atroposlib.generation.configs import (
    APIServerConfig,
    OpenaiConfig,
    ServerBaseline,
    ServerConfigs,
)
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.type_definitions import Item

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
]


class BaseEnv(EnvRuntime, ABC):
    """An environment: items, rollouts, rewards and evaluation.

    Raises at construction:
        ConfigError: the servers or the settings cannot be used.
    """

    # --- for authors to override ------------------------------------------------------

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, ServerConfigs]:
        """Defaults of this environment; which the YAML file and flags override."""
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

    async def collect_trajectories(
        self, item: Item
    ) -> tuple[
        ScoredDataGroup | list[ScoredDataGroup | None] | list[ScoredDataGroup] | None,
        list[Item],
    ]:
        """Return a scored group or several of ``item``, and items for the backlog.

        None means that this item has no training data.
        """
        count_failure = self.group_stats.sample_failed
        score = self.config.context_full_score or 0.0
        return await collect_group(
            scored_when_full(self.collect_trajectory, score, count_failure),
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
        if data is not None and self.checkpoint_dir:
            checkpoint.save(
                self.checkpoint_dir, self.wandb_prepend or self.label(), step, data
            )

    def load_checkpoint(self) -> None:
        """Restore the newest state saved at or before ``curr_step``.

        Restores attributes of the environment only: unknown names and names of the runtime are
        skipped.
        """
        if not self.checkpoint_dir:
            return
        run_name = self.wandb_prepend or self.label()
        newest = checkpoint.newest(self.checkpoint_dir, run_name, self.curr_step)
        if newest is not None:
            checkpoint.restore(self, newest, self.machinery)

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Emit ``wandb_metrics`` and the runtime's; an override awaits this at its end."""
        emitted = dict(wandb_metrics or {})
        emitted.update(self.metrics_logger.averages())
        emitted.update(
            self.metrics_logger.training_metrics(self.group_stats, self.pool.counts)
        )
        emitted = self.perf_stats(emitted)
        emitted.update(await self.server.wandb_metrics())
        if self.logs_to_wandb():
            emitted = await self.create_rollout_table(emitted)
        self.rollouts_for_wandb = []
        self.metrics_logger.emit(emitted, self.curr_step)

    async def add_rollouts_for_wandb(
        self, scored_data: ScoredDataGroup | list[ScoredDataGroup], item: Item | None = None
    ) -> None:
        """Record the text and score of some sequences for the table of rollouts."""
        if not self.logs_to_wandb():
            return
        shown = self.config.num_rollouts_per_group_for_logging
        for group in groups_in(scored_data):
            count = len(group["tokens"]) if shown == -1 else min(shown, len(group["tokens"]))
            self.rollouts_for_wandb.append(
                [
                    (self.tokenizer.decode(group["tokens"][i]), group["scores"][i])
                    for i in range(count)
                ]
            )
        keep = self.config.num_rollouts_to_keep
        self.rollouts_for_wandb = self.rollouts_for_wandb[-keep:] if keep else []

    async def create_rollout_table(self, wandb_metrics: dict[str, Any]) -> dict[str, Any]:
        """Add the table of rollouts to ``wandb_metrics``."""
        if self.rollouts_for_wandb:
            wandb_metrics["train/rollouts"] = rollout_table(self.rollouts_for_wandb)
        return wandb_metrics

    def perf_stats(self, metrics_dict: dict[str, Any]) -> dict[str, Any]:
        """Add the durations since the last call to ``metrics_dict``, as ``train_perf/*``."""
        metrics_dict.update(self.metrics_logger.performance_metrics())
        return metrics_dict

    # --- for authors to call ----------------------------------------------------------

    def log(self, name: str, value: float) -> None:
        """Record a number; its mean is emitted with the next metrics."""
        self.metrics_logger.log(name, value)

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
        measured_at = self.measured_at()
        self.metrics_logger.emit(
            {**evaluation.eval_metrics(metrics), **measured_at}, self.curr_step
        )
        if self.config.samples_path is not None and samples is not None:
            evaluation.append_samples(Path(self.config.samples_path), samples, self.curr_step)
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
            task=task_name or f"{self.name or type(self).__name__}_eval",
            model_name=model_name or named or self.served_model_name(),
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
        serving = Serve(self)
        self.serving = serving
        await serving.run()

    async def process_manager(self) -> int:
        """Run ``process``: write groups to a file and return their number."""
        self.process_mode = True
        self.n_groups_to_process = self.n_groups_to_process or self.config.total_steps
        self.group_size_to_process = self.group_size_to_process or self.config.group_size
        self.config.group_size = self.group_size_to_process
        return await run_process(self)

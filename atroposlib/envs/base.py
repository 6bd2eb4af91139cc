"""``BaseEnv``: what an environment author subclasses. The parts live beside this file.

    config      settings                        groups      samples -> scored group (pure)
    pacing      how many rollouts now (pure)    workers     rollouts under way
    serve       for a trainer                   delivery    keep or drop, save, send
    process     to a file                       evaluation  results and where they go
    metrics_logger     metrics                         checkpoint  small state     cli  flags

An environment overrides ``setup``, ``get_next_item``, ``collect_trajectory`` (one sample)
or ``collect_trajectories`` (a group), ``evaluate``, and seldom anything else.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from atroposlib.envs.cli import main as run_command_line
from atroposlib.envs.rollout.groups import ScoredDataGroup, ScoredDataItem, groups_in
from atroposlib.envs.rollout.samples import collect_group
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
    """One environment: items, rollouts, rewards, and how well the model does.

    Raises at construction:
        ConfigError: the servers or the settings cannot be used.
    """

    # --- for authors to override ------------------------------------------------------

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, ServerConfigs]:
        """Defaults of this environment; YAML and flags win over them."""
        return cls.env_config_cls(), ServerBaseline()

    async def setup(self) -> None:
        """Load what the environment needs; runs once, before anything else."""
        raise NotImplementedError(f"{type(self).__name__} overrides setup")

    @abstractmethod
    async def get_next_item(self) -> Item | None:
        """The next item to roll out; None: there is none now."""

    async def collect_trajectory(self, item: Item) -> tuple[ScoredDataItem | None, list[Item]]:
        """One sample of ``item``, scored, and items for the backlog.

        None or an exception: the sample failed and is drawn again.
        """
        raise NotImplementedError(
            f"{type(self).__name__} overrides collect_trajectory or collect_trajectories"
        )

    async def collect_trajectories(self, item: Item) -> tuple[
        ScoredDataGroup | list[ScoredDataGroup | None] | list[ScoredDataGroup] | None,
        list[Item],
    ]:
        """A scored group of ``item``, or several, and items for the backlog.

        None: this item gives nothing to train on.
        """
        return await collect_group(
            self.collect_trajectory,
            item,
            self.config.group_size,
            self.group_stats.sample_failed,
        )

    async def postprocess_histories(self, trajectories: Any) -> Any:
        """Filter or score what was collected; the same shapes come back."""
        return trajectories

    @abstractmethod
    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        """Measure the model and end with ``await self.evaluate_log(metrics, ...)``."""

    async def cleanup(self) -> None:
        """Runs after every rollout, also after a failed or cancelled one."""

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        """Save ``data``; override with ``super().save_checkpoint(step, {"iter": self.iter})``."""
        if data is not None and self.checkpoint_dir:
            checkpoint.save(
                self.checkpoint_dir, self.wandb_prepend or self.label(), step, data
            )

    def load_checkpoint(self) -> None:
        """Restore the newest state saved at or before ``curr_step``.

        Only what the environment itself keeps: neither an unknown name nor one of the runtime.
        """
        if not self.checkpoint_dir:
            return
        run_name = self.wandb_prepend or self.label()
        found = checkpoint.newest(self.checkpoint_dir, run_name, self.curr_step)
        if found is not None:
            checkpoint.restore(self, found, self.machinery)

    async def wandb_log(self, metrics: dict[str, Any] | None = None) -> None:
        """Emit ``metrics`` and the runtime's own; an override ends by awaiting this."""
        emitted = dict(metrics or {})
        emitted.update(self.metrics_logger.averages())
        emitted.update(
            self.metrics_logger.training_metrics(self.group_stats, self.pool.counts)
        )
        emitted.update(self.metrics_logger.performance_metrics())
        emitted.update(await self.server.wandb_metrics())
        if self.logs_to_wandb():
            emitted = await self.create_rollout_table(emitted)
        self.rollouts_for_wandb = []
        self.metrics_logger.emit(emitted, self.curr_step)

    async def add_rollouts_for_wandb(
        self, scored_data: ScoredDataGroup | list[ScoredDataGroup], item: Item | None = None
    ) -> None:
        """Keep the text and score of some sequences for the table of rollouts."""
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

    async def create_rollout_table(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Add the table of rollouts to ``metrics``."""
        if self.rollouts_for_wandb:
            metrics["train/rollouts"] = rollout_table(self.rollouts_for_wandb)
        return metrics

    # --- for authors to call ----------------------------------------------------------

    def log(self, name: str, value: float) -> None:
        """Remember a number; its mean is emitted with the next metrics."""
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
    ) -> None:
        """Record evaluation results, named by the step and policy version they belong to.

        Always to the metrics_logger; to files when ``data_dir_to_save_evals`` is set (in ``serve``
        a directory per step); as a table when ``verbose``. Times are seconds since the epoch.
        """
        now = time.time()
        started, ended = start_time or now, end_time or now
        measured_at = self.measured_at()
        task = task_name or f"{self.name or type(self).__name__}_eval"
        self.metrics_logger.emit(
            {**evaluation.eval_metrics(metrics), **measured_at}, self.curr_step
        )
        if self.config.samples_path is not None and samples is not None:
            evaluation.append_samples(Path(self.config.samples_path), samples, self.curr_step)
        if self.config.data_dir_to_save_evals is not None:
            directory = Path(self.config.data_dir_to_save_evals)
            if measured_at:
                directory = directory / f"step-{measured_at['eval_step']}"
            params = {"max_new_tokens": self.config.max_token_length}
            evaluation.write_results(
                directory,
                metrics,
                task=task,
                model_name=model_name or self._model_name(),
                seconds=ended - started,
                generation_parameters={**params, **(generation_parameters or {})},
                samples=samples,
                measured_at=measured_at,
            )
        if verbose:
            evaluation.show_results(task, metrics, started, ended)

    def _model_name(self) -> str | None:
        """Some environments name the model in their own settings; else the server's name."""
        named = getattr(self.config, "model_name", None)
        return str(named) if named else self.served_model_name()

    @classmethod
    def cli(cls) -> None:
        """Run ``serve``, ``process`` or ``evaluate`` as the command line says."""
        run_command_line(cls)

    async def env_manager(self) -> None:
        """``serve``: roll out for a trainer until the run is complete."""
        serving = Serve(self)
        self.serving = serving
        await serving.run()

    async def process_manager(self) -> int:
        """``process``: make groups into a file, and return how many."""
        self.process_mode = True
        self.n_groups_to_process = self.n_groups_to_process or self.config.total_steps
        self.group_size_to_process = self.group_size_to_process or self.config.group_size
        self.config.group_size = self.group_size_to_process
        return await run_process(self)

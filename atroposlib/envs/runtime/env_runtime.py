"""What ``serve``, ``process`` and ``evaluate`` drive: the state of an environment's run.

Authors read ``base.py``; this class is the part of it that they leave alone. The names of
the attributes are public, because environments read and extend them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from atroposlib.envs.rollout.filters import Drop, Kept, Rules
from atroposlib.envs.rollout.groups import (
    ScoredDataGroup,
    groups_in,
    item_label,
    with_metadata,
)
from atroposlib.envs.rollout.pacing import Limits, derived_batch_size
from atroposlib.envs.rollout.pool import End, Outcome, WorkerPool
from atroposlib.envs.runtime.hooks import EnvHooks, Serving
from atroposlib.envs.runtime.metrics_logger import Logbook, WandbSink, local_sinks
from atroposlib.envs.runtime.sender import GroupFile, Sender, Tally, judge_all
from atroposlib.envs.settings.config import BaseEnvConfig
from atroposlib.errors import AtroposError, ConfigError, NotRegistered, RolloutError, boundary
from atroposlib.generation.configs import ServerConfigs
from atroposlib.generation.routing.manager import ServerManager
from atroposlib.generation.sampling.reasoning import ReasoningConfig
from atroposlib.type_definitions import Item
from atroposlib.utils.tokenizers.loading import load_tokenizer_named
from atroposlib.wire import EnvRegistered

logger = logging.getLogger(__name__)


class EnvRuntime(EnvHooks):
    """Servers, work under way and measurements of one environment."""

    def __init__(
        self,
        config: BaseEnvConfig,
        server_configs: ServerConfigs,
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        before = frozenset(vars(self))  # some environments set theirs before this call
        self.config = config.model_copy()
        self.server = ServerManager(
            server_configs,
            slurm=slurm,
            testing=testing,
            server_class=self.server_cls,
            reasoning_config=ReasoningConfig.from_env_config(config),
        )
        self._init_run()
        self._init_work()
        self._init_measurements()
        self.machinery = vars(self).keys() - before  # what a checkpoint must not replace

    def _init_run(self) -> None:
        config = self.config
        self.max_num_workers = config.max_num_workers
        if config.max_num_workers == -1:
            self.max_num_workers = config.max_num_workers_per_node * len(self.server.servers)
        self.takes_steps_from_trainer = config.total_steps == -1
        self.curr_step = 0
        self.max_token_len = -1
        self.checkpoint_dir = ""
        self.checkpoint_interval = -1
        self.wandb_prepend: str | None = None
        self.wandb_project: str | None = None
        self.wandb_group: str | None = None
        self.status_dict: dict[str, Any] = {}
        self.env_id: int | None = None
        self.sender: Sender | None = None
        self.serving: Serving | None = None
        self.measured_at: Callable[[], dict[str, Any]] = dict  # step and version of an eval
        self.process_mode = False
        self.n_groups_to_process = 0
        self.group_size_to_process = 0
        self.group_file: GroupFile | None = None
        if config.data_path_to_save_groups:
            self.group_file = GroupFile(config.data_path_to_save_groups)
            config.data_path_to_save_groups = str(self.group_file.path)

    def _init_work(self) -> None:
        self.pool = WorkerPool(
            self,
            self._deliver,
            timeout_s=self.config.worker_timeout,
            max_item_retries=self.config.max_item_retries,
            on_end=self._remember_outcome,
        )
        self.workers = self.pool.tasks
        self.running_items = self.pool.running
        self.backlog = self.pool.backlog
        self.eval_workers: set[asyncio.Task[Any]] = set()
        self.eval_runner: asyncio.Task[None] | None = None
        self.last_completed_item: Item | None = None

    def _init_measurements(self) -> None:
        self.tally = Tally()
        self.logbook = Logbook(local_sinks(self.label(), self.config.metrics_path))
        self.items_sent_this_step = 0
        self.completion_lengths: list[int] = []
        self.rollouts_for_wandb: list[list[tuple[Any, ...]]] = []
        self.task_duration: list[float] = []
        self.succeeded_task_duration: list[float] = []
        self.failed_task_duration: list[float] = []
        self.task_successful: list[int] = []
        self.mainloop_timings: list[float] = []
        self.workers_added_list: list[int] = []

    # --- who and where -----------------------------------------------------------------

    @cached_property
    def tokenizer(self) -> Any:
        """The trained model's tokenizer, loaded at the first use; may be set instead."""
        return load_tokenizer_named(self.config.tokenizer_name)

    @property
    def jsonl_writer(self) -> GroupFile | None:
        """Where kept groups are written, under the name that environments know."""
        return self.group_file

    def label(self) -> str:
        """The name of this environment: ``wandb_name``, else the class's."""
        return self.config.wandb_name or self.name or type(self).__name__

    def served_model_name(self) -> str | None:
        """The model of the first server."""
        return self.server.servers[0].config.model_name if self.server.servers else None

    @property
    def registration(self) -> EnvRegistered:
        """The run this environment belongs to.

        Raises:
            NotRegistered: it has not joined one.
        """
        if self.sender is None:
            raise NotRegistered(f"{self.label()} has not joined a run")
        return self.sender.registration

    @property
    def accepted_groups(self) -> int:
        """Groups that the rollout API accepted, in groups of the configured size."""
        return self.sender.accepted_groups if self.sender else 0

    def join(self, registration: EnvRegistered, batch_size: int, max_token_len: int) -> None:
        """Take over what the run prescribes; -1 means that it does not say.

        Raises:
            ConfigError: no length is set, or a group cannot fit into a batch.
        """
        config = self.config
        self.take_sizes(batch_size, max_token_len)
        if self.takes_steps_from_trainer:
            config.total_steps = registration.num_steps
        if config.total_steps < 0:
            raise ConfigError("total_steps is -1 and the trainer does not say how many either")
        self.env_id = registration.env_id
        self.wandb_prepend = registration.wandb_name
        self.checkpoint_dir = registration.checkpoint_dir
        self.checkpoint_interval = registration.checkpoint_interval
        self.curr_step = registration.starting_step

    def take_sizes(self, batch_size: int, max_token_len: int) -> None:
        """Follow what a batch is in sequences and how long one may be; -1: not said.

        Raises:
            ConfigError: a group cannot fit into a batch.
        """
        config = self.config
        if batch_size != -1:
            config.batch_size = batch_size
        if max_token_len != -1:
            self.max_token_len = max_token_len
        if config.batch_size != -1 and config.group_size > config.batch_size:
            raise ConfigError(
                f"group_size {config.group_size} is more than the {config.batch_size} "
                "sequences of a batch: lower --env.group_size or raise the trainer's batch"
            )

    # --- pace --------------------------------------------------------------------------

    def limits(self) -> Limits:
        """The settings that pace this environment."""
        config = self.config
        return Limits(
            group_size=config.group_size,
            batch_size=config.batch_size,
            max_workers=self.max_num_workers,
            max_batches_offpolicy=config.max_batches_offpolicy,
            min_batch_allocation=config.min_batch_allocation,
            eval_handling=config.eval_handling,
            eval_limit_ratio=config.eval_limit_ratio,
        )

    @property
    def derived_batch_size(self) -> int:
        """Sequences of each batch that this environment may fill."""
        if not self.status_dict or self.config.batch_size == -1:
            return self.config.batch_size
        return int(derived_batch_size(self.limits(), self.status_dict["unallocated_fraction"]))

    async def update_weight(self, weight: float) -> None:
        """Give the servers' slots this environment's share of them, 0..1."""
        await self.server.update_weight(weight)

    async def env_step_checks(self) -> None:
        """What a new trainer step makes due: evaluation, checkpoint, metrics."""
        if self.serving is not None:
            await self.serving.step_checks()

    async def add_train_workers(self) -> None:
        """Start as many rollouts as are wanted now."""
        if self.serving is not None:
            await self.serving.add_workers()

    # --- groups on their way out --------------------------------------------------------

    async def _deliver(self, groups: list[ScoredDataGroup], item: Item) -> int:
        scored = groups[0] if len(groups) == 1 else groups
        sending = not self.process_mode
        try:
            with boundary(self.label(), item, "handle_send_to_api"):
                kept = await self.handle_send_to_api(
                    scored,
                    item,
                    do_send_to_api=sending,
                    abort_on_any_max_length_exceeded=sending,
                )
        except RolloutError as error:
            for _ in groups:
                self.tally.drop(Drop.HOOK_FAILED, str(error), item)
            raise
        self.last_completed_item = item
        return len(kept)

    async def handle_send_to_api(
        self,
        scored_data: ScoredDataGroup | Sequence[ScoredDataGroup | None] | None,
        item: Item | None = None,
        do_send_to_api: bool = True,
        abort_on_any_max_length_exceeded: bool = True,
    ) -> list[ScoredDataGroup]:
        """Keep or drop each group, save and send those kept, and return them."""
        sender = self.sender if do_send_to_api else None
        run_id = sender.registration.run_id if sender else ""  # before anything is awaited
        labelled = [self._labelled(group, item, sender) for group in groups_in(scored_data)]
        rules = Rules(
            self.config.group_size,
            self.config.ensure_scores_are_not_same,
            self.max_token_len,
            drop_too_long=abort_on_any_max_length_exceeded,
        )
        kept: Sequence[Kept] = await judge_all(labelled, rules, self.tally, item)
        for one in kept:
            await self._remember_group(one, item)
        if sender is not None and kept:
            kept = await sender.send(kept, item, run_id)
        self.items_sent_this_step += len(kept)
        self.tally.kept += len(kept)
        return [one.group for one in kept]

    async def _remember_group(self, one: Kept, item: Item) -> None:
        group = one.group
        self.completion_lengths += one.trained_lengths()
        for name, value in ((group.get("metadata") or {}).get("metrics") or {}).items():
            self.logbook.log(f"train/{name}", value)
        try:
            with boundary(self.label(), item, "add_rollouts_for_wandb"):
                await self.add_rollouts_for_wandb(group, item)
        except AtroposError as error:  # a table is not worth a group
            logger.error("%s", error, exc_info=error)
        if self.group_file is not None:
            self.group_file.write(group)

    def _labelled(
        self, group: ScoredDataGroup, item: Item, sender: Sender | None
    ) -> ScoredDataGroup:
        copy = with_metadata(group, item=item_label(item), env=self.label())
        if sender is not None and copy.get("idempotency_key") is None:
            copy["idempotency_key"] = sender.next_key()
        if self.config.include_messages and group.get("messages") is None:
            copy["messages"] = [
                [{"role": "user", "content": self.tokenizer.decode(row)}]
                for row in group["tokens"]
            ]
        return copy

    def _remember_outcome(self, outcome: Outcome, item: Item) -> None:
        for detail in outcome.short:
            self.tally.drop(Drop.SHORT, detail, item)
        if outcome.samples_failed is not None:
            self.tally.sample_failed(outcome.samples_failed, self.config.group_size)
        scored = outcome.end is End.SCORED
        self.task_duration.append(outcome.seconds)
        self.task_successful.append(int(scored))
        durations = self.succeeded_task_duration if scored else self.failed_task_duration
        durations.append(outcome.seconds)

    # --- beginning and end --------------------------------------------------------------

    async def close(self) -> None:
        """Flush and close the files, the metrics and the connections to the servers."""
        if self.group_file is not None:
            self.group_file.close()
        self.logbook.close()
        await self.server.close()

    def logs_to_wandb(self) -> bool:
        """Whether tables have somewhere to go."""
        return any(isinstance(sink, WandbSink) for sink in self.logbook.sinks)

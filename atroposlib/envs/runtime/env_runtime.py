"""Runtime state that ``serve``, ``process`` and ``evaluate`` share in an environment.

Authors read ``base.py``. The names of the attributes are public: released environments read
and set the attributes, including attributes whose values belong to a part of the runtime.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextvars import ContextVar
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

from atroposlib.envs.rollout.filters import (
    NOT_A_GROUP,
    AcceptedGroup,
    FilterRules,
    RejectReason,
)
from atroposlib.envs.rollout.groups import (
    ScoredDataGroup,
    groups_in,
    item_label,
    with_metadata,
)
from atroposlib.envs.rollout.pacing import derived_batch_size
from atroposlib.envs.rollout.pool import Outcome, RolloutStatus, RolloutTask, WorkerPool
from atroposlib.envs.runtime.evaluation import PeriodicEvaluation
from atroposlib.envs.runtime.hooks import EnvHooks, Serving
from atroposlib.envs.runtime.metrics_logger import MetricsLogger
from atroposlib.envs.runtime.registration import JoinedRun
from atroposlib.envs.runtime.sender import GroupFile, GroupSender, GroupStats, filter_groups
from atroposlib.envs.runtime.waits import Shutdown, Waits
from atroposlib.envs.settings.config import FAILING_BACKOFF, BaseEnvConfig
from atroposlib.errors import AtroposError, RolloutError, boundary
from atroposlib.generation.configs import ServerConfigs
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.routing.manager import ServerManager
from atroposlib.generation.sampling.reasoning import ReasoningConfig
from atroposlib.trackers import require_tracker
from atroposlib.type_definitions import Item
from atroposlib.utils.datasets import require_path
from atroposlib.utils.tokenizers.loading import load_tokenizer_named

logger = logging.getLogger(__name__)
T = TypeVar("T")
Durations = list[float]  # seconds
# Life of the trainer when the rollout of this task began: the oldest that sampled its tokens.
_began_under: ContextVar[int | None] = ContextVar("began_under", default=None)


class MoreServers(NamedTuple):
    """Further servers in addition to the trained model's, for example of a teacher or a judge."""

    argument: str  # the constructor's name for these servers
    defaults: ServerConfigs | None  # None: they are optional
    switch: str = ""  # these servers are used only with this setting


class PartAttribute(Generic[T]):
    """An attribute of the environment whose value a part of the runtime holds."""

    def __init__(self, part: str, name: str) -> None:
        self._part = part
        self._name = name

    def __get__(self, env: object, owner: type[object] | None = None) -> T:
        if env is None:
            return self  # type: ignore[return-value]  # read from the class
        value: T = getattr(getattr(env, self._part), self._name)
        return value

    def __set__(self, env: object, value: T) -> None:
        # Values that an environment sets before it calls this constructor have no effect.
        if self._part in vars(env):
            setattr(vars(env)[self._part], self._name, value)


class EnvRuntime(EnvHooks):
    """Servers, running rollouts and measurements of an environment."""

    name: str | None = None
    env_config_cls: type[BaseEnvConfig] = BaseEnvConfig
    server_cls: type[APIServer] = APIServer  # type: ignore[type-abstract]  # by server_type

    curr_step = PartAttribute[int]("joined_run", "step")
    max_token_len = PartAttribute[int]("joined_run", "max_token_len")
    env_id = PartAttribute[int | None]("joined_run", "env_id")
    checkpoint_dir = PartAttribute[str]("joined_run", "checkpoint_dir")
    checkpoint_interval = PartAttribute[int]("joined_run", "checkpoint_interval")
    wandb_prepend = PartAttribute[str | None]("joined_run", "name")
    wandb_project = PartAttribute[str | None]("joined_run", "project")
    wandb_group = PartAttribute[str | None]("joined_run", "group")
    items_sent_this_step = PartAttribute[int]("group_stats", "kept_since_log")
    rollouts_for_wandb = PartAttribute[list[list[tuple[Any, ...]]]](
        "metrics_logger", "rollouts"
    )
    completion_lengths = PartAttribute[list[int]]("metrics_logger", "completion_lengths")
    task_duration = PartAttribute[Durations]("metrics_logger", "task_duration")
    task_successful = PartAttribute[list[int]]("metrics_logger", "task_successful")
    succeeded_task_duration = PartAttribute[Durations](
        "metrics_logger", "succeeded_task_duration"
    )
    failed_task_duration = PartAttribute[Durations]("metrics_logger", "failed_task_duration")
    mainloop_timings = PartAttribute[Durations]("metrics_logger", "mainloop_timings")
    workers_added_list = PartAttribute[list[int]]("metrics_logger", "workers_added_list")
    eval_runner = PartAttribute[asyncio.Task[None] | None]("periodic_evaluation", "task")

    @classmethod
    def more_servers(cls) -> dict[str, MoreServers]:
        """By namespace of flags and file: ``{"teacher": ...}`` gives ``--teacher.<field>``."""
        return {}

    @classmethod
    def require_data(cls, config: BaseEnvConfig) -> None:
        """Raise DatasetUnavailable if nothing is at ``dataset_path``; before any wait."""
        if path := getattr(config, "dataset_path", None):
            require_path(path)

    def __init__(
        self,
        config: BaseEnvConfig,
        server_configs: ServerConfigs,
        slurm: bool = False,
        testing: bool = False,
    ) -> None:
        for name in config.trackers:
            require_tracker(name)
        before = frozenset(vars(self))  # some environments set theirs before this call
        self.config = config.model_copy()
        # The command line asked its servers for names already, and makes no further servers.
        self.server: ServerManager = vars(self).get("server") or ServerManager(
            server_configs,
            slurm=slurm,
            testing=testing,
            server_class=self.server_cls,
            reasoning_config=ReasoningConfig.from_env_config(config),
        )
        self.max_num_workers = config.max_num_workers
        self.count_workers()
        self.joined_run = JoinedRun(self.label, self.config)
        self.serving: Serving | None = None
        self.process_mode = False
        self.n_groups_to_process = 0
        self.group_size_to_process = 0
        self.last_completed_item: Item | None = None
        self.group_stats = GroupStats()
        self.metrics_logger = MetricsLogger(self.label(), config.metrics_path)
        self.group_file: GroupFile | None = None
        if self.config.data_path_to_save_groups:
            self.group_file = GroupFile(self.config.data_path_to_save_groups)
            self.config.data_path_to_save_groups = str(self.group_file.path)
        self.pool = WorkerPool(
            self,
            self._deliver,
            on_end=self._record_outcome,
            handle=lambda uuid: self.handle_env(uuid),  # looked up late
        )
        self.workers = self.pool.tasks
        self.running_items = self.pool.running
        self.backlog = self.pool.backlog
        self.periodic_evaluation = PeriodicEvaluation(
            lambda: self.evaluate(),  # looked up late: it may be replaced on the instance
            self.joined_run,
            self.metrics_logger,
            self.pool.changed.set,
        )
        self.machinery = vars(self).keys() - before  # what a checkpoint must not replace

    # --- identity and servers -----------------------------------------------------------

    @cached_property
    def tokenizer(self) -> Any:
        """The trained model's tokenizer, loaded at the first use; may be set instead.

        Raises ConfigError: it cannot be loaded.
        """
        return load_tokenizer_named(self.config.tokenizer_name)

    @cached_property
    def eval_workers(self) -> set[asyncio.Task[Any]]:
        """Tasks of evaluations that environments start themselves."""
        return set()

    @property
    def jsonl_writer(self) -> GroupFile | None:
        """The file of accepted groups, under the name that released environments use."""
        return self.group_file

    @property
    def status_dict(self) -> dict[str, Any]:
        """The last status from the rollout API; empty before the first."""
        status = self.joined_run.status
        return status.model_dump() if status is not None else {}

    @property
    def sender(self) -> GroupSender | None:
        """The sender of ``serve``; None before the registration and in commands other than ``serve``."""
        return self.serving.sender if self.serving is not None else None

    def count_workers(self) -> None:
        """Set ``max_num_workers`` by the number of servers, unless the settings do."""
        if self.config.max_num_workers == -1:
            per_server = self.config.max_num_workers_per_node
            self.max_num_workers = per_server * len(self.server.servers)

    def label(self) -> str:
        """The name of this environment: ``wandb_name``, else the class's."""
        return self.config.wandb_name or self.name or type(self).__name__

    def served_model_name(self) -> str | None:
        """The model of the first server."""
        return self.server.servers[0].config.model_name if self.server.servers else None

    def measured_at(self) -> dict[str, Any]:
        """Step and policy versions of the periodic evaluation; empty outside ``serve``."""
        return self.periodic_evaluation.measured_at()

    # --- steps of serve, which released environments override and call -------------------

    async def register_env(self) -> None:
        """Wait for the trainer and join its run."""
        if self.serving is not None:
            await self.serving.register()

    async def get_server_info(self) -> None:
        """Follow the sizes of the trainer's batches."""
        if self.serving is not None:
            await self.serving.registration.refresh()

    async def setup_wandb(self) -> None:
        """Record in the trackers of the settings, under the names of the run."""
        if self.serving is not None:
            await self.serving.open_trackers()

    async def get_status(self) -> None:
        """Read queue, step and weight into ``status_dict``."""
        if self.serving is not None:
            await self.serving.read_status()

    async def handle_env(self, item_uuid: str) -> list[ScoredDataGroup]:
        """Roll out an item of ``running_items``; return the groups that it gave."""
        status = self.joined_run.status
        _began_under.set(status.incarnation if status else None)
        return await self.pool.roll_out(item_uuid)

    # --- pace --------------------------------------------------------------------------

    @property
    def derived_batch_size(self) -> int:
        """Sequences of each batch that this environment may fill."""
        status = self.joined_run.status
        if status is None or self.config.batch_size == -1:
            return self.config.batch_size
        return int(derived_batch_size(self.config, status.unallocated_fraction))

    async def update_weight(self, weight: float) -> None:
        """Limit the servers' slots to this environment's share, 0..1."""
        await self.server.update_weight(weight)

    async def env_step_checks(self) -> None:
        """Do what a new trainer step makes due: evaluation, checkpoint, metrics."""
        if self.serving is not None:
            await self.serving.step_checks()

    async def add_train_workers(self) -> None:
        """Start as many rollouts as are wanted now."""
        if self.serving is not None:
            await self.serving.add_workers()

    async def new_job(self) -> RolloutTask | None:
        """A rollout of the next item; None if there is no item now."""
        with boundary(self.label(), None, "get_next_item"):
            item = await self.get_next_item()
        return None if item is None else RolloutTask(item)

    async def pause_while_failing(self, waits: Waits, shutdown: Shutdown) -> None:
        """Pause, longer each time, while more rollouts fail in a row than run at once."""
        errors = self.pool.consecutive_errors
        pause = FAILING_BACKOFF.pause_s(errors - self.max_num_workers)
        if pause:
            waits.start(
                "failures", f"{errors} rollouts failed in a row, next in {pause:.1f} s"
            )
            await shutdown.pause(pause)
        else:
            waits.clear("failures")

    # --- delivery of groups -------------------------------------------------------------

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
            for group in groups:
                self.group_stats.drop(RejectReason.HOOK_FAILED, str(error), item, group)
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
        """Accept or reject each group, save, send and return the accepted groups."""
        sender = self.sender if do_send_to_api else None
        # Before anything is awaited.
        run_id = self.joined_run.registration.run_id if sender else ""
        labelled = []
        for group in groups_in(scored_data):
            try:
                labelled.append(self._label(group, item, sender))
            except NOT_A_GROUP as problem:
                self.group_stats.drop(RejectReason.MALFORMED, repr(problem), item)
        rules = FilterRules(
            self.config.group_size,
            self.config.ensure_scores_are_not_same,
            self.max_token_len,
            drop_too_long=abort_on_any_max_length_exceeded,
        )
        kept: Sequence[AcceptedGroup] = await filter_groups(
            labelled, rules, self.group_stats, item
        )
        for accepted in kept:
            await self._record_group(accepted, item)
        if sender is not None and kept:
            kept = await sender.send(kept, item, run_id)
        self.group_stats.add_kept(len(kept))
        return [accepted.group for accepted in kept]

    async def _record_group(self, one: AcceptedGroup, item: Item) -> None:
        group = one.group
        self.metrics_logger.add_lengths(one.trained_lengths())
        for name, value in ((group.get("metadata") or {}).get("metrics") or {}).items():
            self.metrics_logger.log(f"train/{name}", value)
        try:
            with boundary(self.label(), item, "add_rollouts_for_wandb"):
                await self.add_rollouts_for_wandb(group, item)
        except AtroposError as error:  # the group is sent without its table
            logger.error("%s", error, exc_info=error)
        if self.group_file is not None:
            self.group_file.write(group)

    def _label(
        self, group: ScoredDataGroup, item: Item, sender: GroupSender | None
    ) -> ScoredDataGroup:
        copy = with_metadata(group, item=item_label(item), env=self.label())
        if sender is not None and copy.get("idempotency_key") is None:
            copy["idempotency_key"] = sender.next_key()
        if sender is not None and _began_under.get() is not None:
            copy.setdefault("incarnation", _began_under.get())
        if self.config.include_messages and group.get("messages") is None:
            copy["messages"] = [
                [{"role": "user", "content": self.tokenizer.decode(row)}]
                for row in group["tokens"]
            ]
        return copy

    def _record_outcome(self, outcome: Outcome, item: Item) -> None:
        stats, error = self.group_stats, outcome.error
        for detail in outcome.short:
            if error is None or error.__cause__ is None:
                stats.drop(RejectReason.SHORT, detail, item)
            else:  # logged with its sample
                stats.dropped[RejectReason.SHORT.value] += 1
        if outcome.samples_failed is not None:
            stats.sample_failed(outcome.samples_failed, error, self.config.group_size)
        scored = outcome.status is RolloutStatus.SCORED
        self.metrics_logger.rollout_ended(outcome.seconds, scored=scored)

    # --- metrics, end -----------------------------------------------------------------

    def logs_to_wandb(self) -> bool:
        """Whether a metrics sink takes tables."""
        return self.metrics_logger.shows_tables

    async def close(self) -> None:
        """Flush and close the files, the metrics and the connections to the servers."""
        if self.group_file is not None:
            self.group_file.close()
        self.metrics_logger.close()
        await self.server.close()

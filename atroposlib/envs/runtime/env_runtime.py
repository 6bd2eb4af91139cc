"""Runtime state that ``serve``, ``process`` and ``evaluate`` share, beside the environment.

An environment holds its runtime in the only attribute ``SLOT``, so that every further name
belongs to its author. The runtime calls the methods of the original, which authors override, and
reads ``config``, ``server`` and ``tokenizer``. Authors read ``base.py``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from functools import cached_property
from inspect import getattr_static
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from atroposlib.certificate.seals import TASK
from atroposlib.envs.curriculum.curriculum import Curriculum
from atroposlib.envs.journal.journal_opening import pack_groups
from atroposlib.envs.journal.journal_records import DataPlace
from atroposlib.envs.journal.journalled_rollout import LeftWork, rollout_here
from atroposlib.envs.journal.sample_journal import SampleJournal
from atroposlib.envs.rollout.filters import (
    NOT_A_GROUP,
    AcceptedGroup,
    FilterRules,
    RejectReason,
)
from atroposlib.envs.rollout.group_file import GroupFile
from atroposlib.envs.rollout.groups import (
    ScoredDataGroup,
    groups_in,
    item_label,
    task_digest,
    with_metadata,
)
from atroposlib.envs.rollout.pacing import derived_batch_size
from atroposlib.envs.rollout.pool import Outcome, RolloutStatus, RolloutTask, WorkerPool
from atroposlib.envs.rollout.token_account import TokenAccount
from atroposlib.envs.runtime.evaluation import PeriodicEvaluation
from atroposlib.envs.runtime.hooks import EnvHooks, Serving
from atroposlib.envs.runtime.metrics_logger import MetricsLogger
from atroposlib.envs.runtime.registration import JoinedRun
from atroposlib.envs.runtime.sender import GroupSender, GroupStats, filter_groups
from atroposlib.envs.runtime.waits import Shutdown, Waits
from atroposlib.envs.settings.config import FAILING_BACKOFF, SLOT, BaseEnvConfig
from atroposlib.envs.settings.readable import readable
from atroposlib.envs.teaching.hint import teacher_hook
from atroposlib.envs.teaching.teacher import Student, Teacher
from atroposlib.errors import AtroposError, RolloutError, boundary
from atroposlib.generation.configs import ServerConfigs
from atroposlib.generation.routing.manager import ServerManager
from atroposlib.type_definitions import Item
from atroposlib.utils.datasets import PATH_OPTION, data_paths, require_path
from atroposlib.utils.gathering import gather_or_cancel
from atroposlib.wire.images import with_references

logger = logging.getLogger(__name__)
# Life of the trainer when the rollout of this task began: the oldest that sampled its tokens.
_began_under: ContextVar[int | None] = ContextVar("began_under", default=None)
# Numbers of groups that the hook of this delivery accepted; None outside a delivery.
_accepted: ContextVar[list[int] | None] = ContextVar("accepted", default=None)


class MoreServers(NamedTuple):
    """Further servers in addition to the trained model's, for example of a teacher or a judge."""

    argument: str  # the constructor's name for these servers
    defaults: ServerConfigs | None  # None: they are optional
    switch: str = ""  # these servers are used only with this setting


class ReadyServers(NamedTuple):
    """Servers and tokenizer that the command line made before the environment."""

    server: ServerManager
    tokenizer: Any = None


class EnvRuntime:
    """Running rollouts, deliveries and measurements of ``env``."""

    repeats_tasks: ClassVar[bool] = False  # the end of the items is then a mistake in settings

    def __init__(self, env: EnvHooks) -> None:
        self.env = env
        self.max_num_workers = env.config.max_num_workers
        self.count_workers()
        self.joined_run = JoinedRun(self.label, lambda: self.config)
        self.serving: Serving | None = None
        self.process_mode = False  # for environments to read
        self._only_saves = False
        self.n_groups_to_process = 0
        self.group_size_to_process = 0
        self.last_completed_item: Item | None = None
        # Tasks of evaluations that environments start themselves.
        self.eval_workers: set[asyncio.Task[Any]] = set()
        self.group_stats = GroupStats()
        self.metrics_logger = MetricsLogger(self.label(), self.config.metrics_path)
        self.group_file: GroupFile | None = None
        if wanted := env.config.data_path_to_save_groups:
            self.group_file = GroupFile(wanted)
        # Looked up late: an environment may replace its servers.
        self.account = TokenAccount(lambda server: server in self.server.servers)
        self.journal = SampleJournal(
            self.label(), self.is_stale, self.place_of, self.account, self.number_of
        )
        self.curriculum = Curriculum(
            self.config, self.label(), self.journal.note_sampler, self.score_range(type(env))
        )
        self.pool = WorkerPool(
            self,
            self._deliver,
            account=self.account,
            record=self.journal,
            on_end=self._record_outcome,
            handle=lambda uuid: env.handle_env(uuid),  # looked up late
        )
        self.periodic_evaluation = PeriodicEvaluation(
            lambda: env.evaluate(),  # looked up late: it may be replaced on the instance
            self.joined_run,
            self.metrics_logger,
            self.pool.changed.set,
            account=self.account,
        )

    @cached_property
    def teacher(self) -> Teacher | None:
        """The teacher that the settings name, if any; it connects when it is first asked."""
        settings = self.config.teacher
        if settings is None:
            return None
        student = Student(
            self.label,
            servers=lambda: self.server,
            tokenizer=lambda: self.tokenizer,
            tokenizer_name=lambda: self.config.tokenizer_name,
            hint=teacher_hook(self.env),
            on_wait=self._note_teacher_wait,
            log=self.metrics_logger.log,
        )
        return Teacher(settings, student)

    def _note_teacher_wait(self, reason: str | None) -> None:
        if self.serving is not None and reason is not None:
            self.serving.waits.start("server", reason)
        elif self.serving is not None:
            self.serving.waits.clear("server")

    @classmethod
    def more_servers(cls, env_cls: Any) -> dict[str, MoreServers]:
        """By namespace of flags and file: ``{"teacher": ...}`` gives ``--teacher.<field>``."""
        return {}

    @classmethod
    def score_range(cls, env_cls: Any) -> tuple[float, float]:
        """Scores of a worthless and of the best answer, where no setting names them."""
        return 0.0, 1.0

    @classmethod
    def local_data(cls, env_cls: Any, config: BaseEnvConfig) -> dict[str | Path, str]:
        """Paths of local files and folders with the data, and the option that names each."""
        return dict.fromkeys(data_paths(config), PATH_OPTION)

    @classmethod
    def require_data(cls, env_cls: Any, config: BaseEnvConfig) -> None:
        """Raise DatasetUnavailable if there is nothing at a path of the data; before any wait."""
        for path, option in cls.local_data(env_cls, config).items():
            require_path(path, option)

    # --- the environment, its identity and servers ---------------------------------------

    @property
    def config(self) -> BaseEnvConfig:
        """The settings, in the form that the runtime reads."""
        return readable(self.env.config)

    @property
    def server(self) -> ServerManager:
        return self.env.server

    @property
    def tokenizer(self) -> Any:
        return self.env.tokenizer

    def loaded_tokenizer(self) -> Any:
        """The tokenizer if an attribute holds it already, else None."""
        return vars(self.env).get("tokenizer")

    @property
    def collect_trajectories(self) -> Callable[[Any], Awaitable[Any]]:
        return self.env.collect_trajectories

    @property
    def postprocess_histories(self) -> Callable[[Any], Awaitable[Any]]:
        return self.env.postprocess_histories

    @property
    def cleanup(self) -> Callable[[], Awaitable[None]]:
        return self.env.cleanup

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
        return self.config.wandb_name or name_of(self.env) or type(self.env).__name__

    def served_model_name(self) -> str | None:
        """The model of the first server."""
        return self.server.servers[0].config.model_name if self.server.servers else None

    def measured_at(self) -> dict[str, Any]:
        """Step and policy versions of the periodic evaluation; empty outside ``serve``."""
        return self.periodic_evaluation.measured_at()

    def is_stale(self, version: int) -> bool:
        """Whether tokens of ``version`` are too old for the run."""
        status = self.joined_run.status
        if status is None or status.max_staleness is None:
            return False
        return status.policy_version - version > status.max_staleness

    def place_of(self, item: Any) -> int | None:
        """Place of an item in the data; None: the environment does not count its items."""
        return None

    def number_of(self, item: Any) -> int | None:
        """Number of the task that a sampler chose for a counted item."""
        return None

    def go_on_from(self, left: LeftWork) -> DataPlace | None:
        """Continue after the items of earlier lives; the position in the data, if it is counted."""
        self.curriculum.go_on(left.sampler, left.sampler_events, left.numbers)
        for name, item in left.items:
            self.pool.retries.append(RolloutTask(item, uuid=name))
        return None

    # --- commands -----------------------------------------------------------------------

    def begin_serving(self, serving: Serving) -> None:
        """Send groups by ``serving`` from now on."""
        self.serving = serving

    def begin_process(self) -> None:
        """Keep groups in the file only; sizes are the configured sizes unless they were set."""
        self.process_mode = self._only_saves = True
        self.n_groups_to_process = self.n_groups_to_process or self.config.total_steps
        self.group_size_to_process = self.group_size_to_process or self.config.group_size

    async def handle(self, item_uuid: str) -> list[ScoredDataGroup]:
        """Roll out an item of ``running_items``; return the groups that it gave."""
        status = self.joined_run.status
        incarnation = status.incarnation if status else None
        _began_under.set(incarnation)
        self.pool.adopt(item_uuid)
        self.journal.enter(item_uuid, incarnation)
        return await self.pool.roll_out(item_uuid)

    # --- pace --------------------------------------------------------------------------

    def derived_batch_size(self) -> int:
        """Sequences of each batch that this environment may fill."""
        status = self.joined_run.status
        if status is None or self.config.batch_size == -1:
            return self.config.batch_size
        return int(derived_batch_size(self.config, status.unallocated_fraction))

    async def new_job(self) -> RolloutTask | None:
        """A rollout of the next item; None if there is no item now."""
        while True:
            with boundary(self.label(), None, "get_next_item"):
                item = await self.env.get_next_item()
            if item is None:
                return None
            if not self.journal.is_repetition(item):
                name = self.journal.name_of(item)
                job = RolloutTask(item, uuid=name) if name else RolloutTask(item)
                self.journal.begin(job.uuid, item)  # now: its admission may take minutes
                return job

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
        # Overrides of the original take these arguments in ``process`` only, and return nothing.
        saving = {"do_send_to_api": False, "abort_on_any_max_length_exceeded": False}
        options = saving if self._only_saves else {}
        accepted: list[int] = []
        outer = _accepted.set(accepted)
        try:
            with boundary(self.label(), item, "handle_send_to_api"):
                kept = await self.env.handle_send_to_api(scored, item, **options)
        except RolloutError as error:
            for group in groups:
                self.group_stats.drop(RejectReason.HOOK_FAILED, str(error), item, group)
            raise
        finally:
            _accepted.reset(outer)
        self.last_completed_item = item
        return sum(accepted) if kept is None else len(kept)

    async def accept(
        self,
        scored_data: ScoredDataGroup | Sequence[ScoredDataGroup | None] | None,
        item: Item | None,
        *,
        sending: bool,
        drop_too_long: bool,
    ) -> list[ScoredDataGroup]:
        """Accept or reject each group, save, send and return the accepted groups."""
        sender = self.sender if sending else None
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
            self.joined_run.max_token_len,
            drop_too_long=drop_too_long,
            source_digest=self.joined_run.source_digest,
        )
        kept: Sequence[AcceptedGroup] = await filter_groups(
            labelled, rules, self.group_stats, item
        )
        kept = [accepted for accepted in kept if not self._is_refused(accepted, item)]
        if self.teacher is not None:
            kept = await self._with_teacher(self.teacher, kept, item)
        for accepted in kept:
            await self._record_group(accepted, item)
        if sender is not None and kept:
            number = self.joined_run.registration.env_id
            await self.journal.before_post(lambda: pack_groups(kept, number))
            kept = await sender.send(kept, item, run_id)
        self.group_stats.add_kept(len(kept))
        if (delivery := _accepted.get()) is not None:
            delivery.append(len(kept))
        else:  # a hook of the environment replaces the delivery
            self.pool.count_kept(len(kept))
        return [accepted.group for accepted in kept]

    async def _with_teacher(
        self, teacher: Teacher, groups: Sequence[AcceptedGroup], item: Item
    ) -> Sequence[AcceptedGroup]:
        """The groups with the teacher's logprobs; what is not sent is left to the next life."""
        try:
            return await gather_or_cancel(teacher.teach(group, item) for group in groups)
        except RolloutError:
            raise  # its groups are counted where they are delivered
        except (asyncio.CancelledError, AtroposError) as error:
            self.group_stats.leave_unsent(groups, error, item)
            raise

    def _is_refused(self, accepted: AcceptedGroup, item: Item | None) -> bool:
        """Whether the gate of the curriculum refuses a group, which is then counted."""
        refusal = self.curriculum.refusal(accepted.group, item, self._version())
        if refusal is not None:
            self.group_stats.drop(RejectReason.GATE, refusal, item, accepted.group)
        return refusal is not None

    def _version(self) -> int:
        status = self.joined_run.status
        return 0 if status is None else status.policy_version

    async def _record_group(self, one: AcceptedGroup, item: Item) -> None:
        group = one.group
        self.metrics_logger.add_lengths(one.trained_lengths())
        for name, value in ((group.get("metadata") or {}).get("metrics") or {}).items():
            self.metrics_logger.log(f"train/{name}", value)
        try:
            with boundary(self.label(), item, "add_rollouts_for_wandb"):
                await self.env.add_rollouts_for_wandb(group, item)
        except AtroposError as error:  # the group is sent without its table
            logger.error("%s", error, exc_info=error)
        if self.group_file is not None:
            self.group_file.write_with_absent(group)

    def _label(
        self, group: ScoredDataGroup, item: Item, sender: GroupSender | None
    ) -> ScoredDataGroup:
        copy = with_metadata(
            group, item=item_label(item), env=self.label(), **{TASK: task_digest(item)}
        )
        rollout = rollout_here()
        if sender is not None and copy.get("idempotency_key") is None:
            copy["idempotency_key"] = rollout.next_key() if rollout else sender.next_key()
        incarnation = rollout.incarnation if rollout else _began_under.get()
        if sender is not None and incarnation is not None:
            copy.setdefault("incarnation", incarnation)
        if self.config.include_messages and group.get("messages") is None:
            copy["messages"] = [
                [{"role": "user", "content": self.tokenizer.decode(row)}]
                for row in group["tokens"]
            ]
        if sender is not None and self.config.images_once and copy.get("images"):
            copy["images"] = with_references(copy["images"])
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
        if outcome.status is not RolloutStatus.CANCELLED:
            rollout = rollout_here()
            self.curriculum.observe(
                outcome.groups,
                item,
                version=self._version(),
                step=self.joined_run.step,
                rollout=rollout.name if rollout is not None else None,
            )
        scored = outcome.status is RolloutStatus.SCORED
        self.metrics_logger.rollout_ended(outcome.seconds, scored=scored)

    # --- the end ----------------------------------------------------------------------

    async def close(self) -> None:
        """Run the ``close`` of the environment, if it overrides that of ``BaseEnv``; then release.

        A ``close`` that is no method without arguments to await belongs to the author alone. Its
        failure is logged: it must not hide an error that ends the run.
        """
        try:
            if is_hook(own := getattr_static(type(self.env), "close", None)):
                with boundary(self.label(), None, "close"):
                    await own(self.env)
        except AtroposError as error:
            logger.error("%s", error, exc_info=error)
        finally:
            await self.release()

    async def release(self) -> None:
        """Flush and close the files, the metrics and the connections to the servers."""
        if self.group_file is not None:
            self.group_file.close()
        self.metrics_logger.close()
        self.curriculum.history.close()
        if self.teacher is not None:
            await self.teacher.close()
        await self.server.close()  # again too: an evaluation after the end opens connections


def name_of(env: Any) -> str | None:
    """The ``name`` of an environment or of its class; None if it is no text."""
    name = getattr(env, "name", None)
    return name if isinstance(name, str) else None


def is_hook(function: Any, parameters: int = 1) -> bool:
    """Whether ``function`` is an async method that needs no argument beyond ``parameters``."""
    if not inspect.iscoroutinefunction(function):
        return False
    try:
        inspect.signature(function).bind(*[None] * parameters)
    except TypeError:
        return False
    return True


def runtime_of(env: object) -> EnvRuntime:
    """The runtime of an environment. Raises AttributeError: its constructor has not run."""
    runtime = vars(env).get(SLOT)
    if not isinstance(runtime, EnvRuntime):
        raise AttributeError(f"{type(env).__name__}: call super().__init__() first")
    return runtime


def runtime_class(env_cls: type[Any]) -> type[EnvRuntime]:
    """The kind of runtime that environments of ``env_cls`` have."""
    kind: type[EnvRuntime] = getattr(env_cls, SLOT)
    return kind

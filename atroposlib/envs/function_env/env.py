"""Decorator that makes an environment from an async function and a data set."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from atroposlib.envs.attributes import RuntimeSlot
from atroposlib.envs.base import BaseEnv, BaseEnvConfig
from atroposlib.envs.function_env.card import Card, examples
from atroposlib.envs.function_env.config import FunctionEnvConfig, config_class
from atroposlib.envs.function_env.data import (
    Cursor,
    Indexed,
    TaskItem,
    prepare_tasks,
    takes_level,
)
from atroposlib.envs.function_env.local_data import FunctionRuntime
from atroposlib.envs.function_env.partial_results import draw_held_out
from atroposlib.envs.function_env.recorder import Rollout, groups_of, metrics_of, scored_row
from atroposlib.envs.function_env.rewards import RewardPlan, Rewards, is_async
from atroposlib.envs.function_env.rollouts import (
    TOOL_PARSER,
    RolloutRunner,
    errors_of_means,
    evaluation_metrics,
)
from atroposlib.envs.function_env.sampled_tasks import task_source_of
from atroposlib.envs.function_env.stored_rollouts import RolloutForm
from atroposlib.envs.rollout.groups import ScoredDataGroup, ScoredDataItem
from atroposlib.envs.rollout.samples import CONTEXT_FULL, collect_group
from atroposlib.envs.teaching.hint import call_hint
from atroposlib.errors import ConfigError, definition_of
from atroposlib.generation.configs import APIServerConfig, ServerConfigs

logger = logging.getLogger(__name__)
LOCAL_SERVER = APIServerConfig(base_url="http://localhost:9001/v1", server_type="vllm")


@dataclass(frozen=True)
class Definition:
    """Arguments of ``@environment``."""

    function: Callable[..., Any]
    dataset: Any
    eval_dataset: Any
    rewards: RewardPlan
    servers: ServerConfigs
    lifespan: Callable[..., Any] | None = None
    card: Card | None = None
    teacher_prompt: Callable[..., Any] | None = None


def environment(
    dataset: Any,
    *,
    eval_dataset: Any = None,
    rewards: Rewards = None,
    settings: Mapping[str, Any] | None = None,
    config: type[BaseEnvConfig] = FunctionEnvConfig,
    servers: ServerConfigs = LOCAL_SERVER,
    lifespan: Callable[..., Any] | None = None,
    card: Card | None = None,
    teacher_prompt: Callable[..., Any] | None = None,
    name: str | None = None,
    **defaults: Any,
) -> Callable[[Callable[..., Any]], type[FunctionEnv]]:
    """Make an async function ``(task, model)`` an environment, a subclass of ``BaseEnv``.

    The function calls the model any number of times and returns the reward: a number, a dict
    of named rewards, a :class:`Reward`, or None for no score. An optional parameter ``config``
    receives the settings, ``resources`` the value of ``lifespan``.

    Args:
        dataset: a list or any iterable of tasks, possibly endless, a sync or
            async callable that returns an iterable and may take the config, a .jsonl, .json or
            .parquet file, or ``"hub:owner/name:subset/split"``. Callables and files are read
            in setup.
        eval_dataset: the same, for evaluation. Without it, or if its callable returns None,
            ``eval_fraction`` of the data set is held out.
        rewards: weights of the named rewards, ``{"exact": 1.0, "short": 0.1}``, or reward
            functions ``(task, answer)`` with weights, ``{exact: 1.0, short: 0.1}``; then the
            function returns the answer. A weight of 0 only logs.
        settings: additional settings, each a flag ``--env.<name>``: a default or a ``Field``.
        config: a config class to extend instead.
        servers: inference servers, if neither YAML nor flags name any.
        lifespan: a callable, which may take the config, that returns an async context manager;
            entered at the end of setup and left in close, by the same asyncio task.
        card: facts for its checks and the gallery, with gold replies (``play`` runs them).
        teacher_prompt: a callable ``(task)`` or ``(task, prompt)`` that returns what only the
            teacher of the settings reads instead of the prompt, for example a hint: messages, a
            text, token ids, or None for the student's prompt.
        defaults: new defaults of existing settings, for example ``group_size=8``.

    Raises:
        ConfigError: an argument cannot be used.

    Example: environment(dataset="problems.jsonl", group_size=16, max_tokens=64)
    """

    _require_dataset(dataset)

    def decorate(function: Callable[..., Any]) -> type[FunctionEnv]:
        label = str(name or getattr(function, "__name__", type(function).__name__))
        try:
            _check_signature(label, function, lifespan)
            plan = RewardPlan.of(rewards)
            config_cls = config_class(label, config, settings or {}, defaults)
        except ConfigError as error:
            _refuse(error, function)
        doc = inspect.getdoc(function) or f"The environment {label!r}."
        attributes = {
            "name": label,
            "definition": Definition(
                function,
                dataset,
                eval_dataset,
                plan,
                servers,
                lifespan,
                card,
                teacher_prompt,
            ),
            "env_config_cls": config_cls,
            "rollout": staticmethod(function),
            "__doc__": doc,
            "__module__": function.__module__,
        }
        return type(label, (FunctionEnv,), attributes)

    return decorate


def _require_dataset(dataset: Any) -> None:
    most = 2 if takes_level(dataset) else 1
    if inspect.isfunction(dataset) and len(inspect.signature(dataset).parameters) > most:
        what = f"{dataset.__name__}: write @environment(tasks), with a data set"
        _refuse(ConfigError(what), dataset)


def _refuse(error: ConfigError, function: Callable[..., Any]) -> NoReturn:
    """Raise ``error``; for a function of the running script print it and exit with 2."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    if function.__module__ != "__main__" or script is None:
        raise error
    at = definition_of(function)
    print(f"error: {at}: {error}{at.source}" if at else f"error: {error}", file=sys.stderr)
    raise SystemExit(2) from None


def _check_signature(label: str, function: Callable[..., Any], lifespan: Any) -> None:
    if not is_async(function):
        raise ConfigError(
            f"{label}: write `async def {label}(task, model)`; it awaits the model"
        )
    parameters = list(inspect.signature(function).parameters.values())
    offered = ["config"] if lifespan is None else ["config", "resources"]
    unknown = [
        p.name for p in parameters[2:] if p.default is p.empty and p.name not in offered
    ]
    if len(parameters) < 2 or unknown:
        hint = "; give @environment a lifespan" if unknown == ["resources"] else ""
        raise ConfigError(
            f"{label}: takes (task, model) or (task, model, config), not {unknown}{hint}"
        )


class FunctionEnv(BaseEnv):
    """Environment of a function. :func:`environment` makes the subclasses."""

    definition: Definition
    rollout: Callable[..., Any]
    env_config_cls: type[BaseEnvConfig] = FunctionEnvConfig
    config: FunctionEnvConfig
    _atropos = RuntimeSlot(FunctionRuntime)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.data_place: dict[str, Any] = {}  # restored by load_checkpoint, as the next
        self.opponent_record: dict[str, Any] = {}
        self.held_out: list[TaskItem] = []
        self._cursor: Cursor | None = None
        plan = self.definition.rewards.with_weights(self.config.reward_weights)
        self.rollouts = RolloutRunner(
            self._atropos, self.config, self.definition.function, plan
        )

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, ServerConfigs]:
        return cls.env_config_cls(), cls.definition.servers

    # --- data -------------------------------------------------------------------------

    async def setup(self) -> None:
        if any(server.returns_tokens for server in self.server.servers):
            # Takes seconds of imports and reading: not on the event loop, which handles signals.
            await asyncio.to_thread(lambda: self.tokenizer)
        definition = self.definition
        source, self.held_out = await prepare_tasks(
            definition.dataset, definition.eval_dataset, self.config, env=self._atropos.label()
        )
        curriculum = self._atropos.curriculum
        self._cursor = Cursor(task_source_of(source, curriculum, self.config.epochs))
        await asyncio.to_thread(curriculum.named.digest)  # seconds for a large data set
        if self.config.gold_examples:
            tasks = source.training_rows() if isinstance(source, Indexed) else []
            self.rollouts.show(await examples(type(self), tasks, self.config))
        if self.server.tool_parser is None:
            self.server.tool_parser = TOOL_PARSER
        if definition.lifespan is not None:
            await self.rollouts.enter(definition.lifespan)

    @property
    def cursor(self) -> Cursor:
        """Position in the data set.

        Raises:
            ConfigError: ``setup`` has not run.
        """
        if self._cursor is None:
            raise ConfigError(
                f"{self._atropos.label()}: await setup() first, it loads the data"
            )
        return self._cursor

    async def get_next_item(self) -> TaskItem | None:
        return self.cursor.next()

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        record = self.rollouts.record.state()
        own = {"data_place": self.cursor.state(), "opponent_record": record}
        super().save_checkpoint(step, {**own, **(data or {})})

    def load_checkpoint(self) -> None:
        super().load_checkpoint()
        if self.data_place:
            self.cursor.seek(self.data_place)
        self.rollouts.record.restore(self.opponent_record)

    # --- rollouts ---------------------------------------------------------------------

    async def collect_trajectory(
        self, item: TaskItem
    ) -> tuple[ScoredDataItem | None, list[TaskItem]]:
        """Run a rollout and return its row, or the first of several rows."""
        rollout = await self.rollouts.train(item)
        return (None if rollout.reward.score is None else scored_row(rollout)), []

    async def collect_trajectories(
        self, item: TaskItem
    ) -> tuple[list[ScoredDataGroup], list[TaskItem]]:
        """``group_size`` rollouts of ``item``; failed and unscored rollouts are drawn again."""
        drawn: list[Rollout] = []

        async def draw(item: TaskItem) -> tuple[ScoredDataItem | None, list[TaskItem]]:
            rollout = await runtime.journal.kept_or_drawn(
                lambda: self.rollouts.train(item), RolloutForm()
            )
            if rollout.reward.score is None:
                return None, []
            drawn.append(rollout)
            return scored_row(rollout), []

        runtime, code = self._atropos, self.definition.function
        failed, log = runtime.group_stats.sample_failed, runtime.metrics_logger.log
        _, backlog = await collect_group(draw, item, self.config.group_size, failed, code)
        self.cursor.done(item)
        for rollout in drawn:
            for name, value in metrics_of(rollout.reward).items():
                log(f"rollouts/{name}", value)
            log(f"rollouts/{CONTEXT_FULL}", float(rollout.is_cut_off))
            if rollout.is_cut_off:
                failed(CONTEXT_FULL)
        group_id = f"{item['id']}@{item['epoch']}"
        wants_messages = self.config.include_messages
        task, about = item["task"], dict[str, Any]()
        if isinstance(task, Mapping) and "source" in task:
            about["source"] = task["source"]
        made = groups_of(drawn, group_id, with_messages=wants_messages, about=about)
        return made, backlog

    async def teacher_prompt(self, item: TaskItem, prompt: list[int]) -> Any:
        """The prompt that only the teacher reads, by the argument ``teacher_prompt``."""
        hook = self.definition.teacher_prompt
        return None if hook is None else await call_hint(hook, item["task"], prompt)

    async def close(self) -> None:
        await self.rollouts.close()
        await super().close()

    # --- evaluation -------------------------------------------------------------------

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Run the function on the held-out tasks, with ``model.split`` "eval"."""
        config, started = self.config, time.time()
        if not self.held_out:
            advice = f"{self._atropos.label()}: nothing to evaluate: give @environment an eval_dataset"
            if self._atropos.serving is None:
                raise ConfigError(advice)
            logger.warning("%s", advice)  # the training run continues
            return
        alone = (
            self._atropos.serving is None
        )  # the results of ``serve`` are of whole evaluations
        samples = await draw_held_out(
            config,
            self.held_out,
            self.rollouts.evaluate,
            self.definition.function,
            config.data_dir_to_save_evals if alone else None,
        )
        await self.evaluate_log(
            evaluation_metrics(samples, config.eval_samples),
            start_time=started,
            generation_parameters={
                "temperature": config.eval_temperature,
                "max_new_tokens": config.max_tokens,
                "n": config.eval_samples,
            },
            samples=[sample.line() for sample in samples],
            stderr=errors_of_means(samples, config.eval_samples),
        )

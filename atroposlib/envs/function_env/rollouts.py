"""Rollouts of a function environment: session, function call, reward, rows; and evaluation.

session on a server -> function(task, model) -> reward -> rows                       training
                                             -> reward -> EvalSample -> summary()    evaluation

An evaluation takes the mean over the samples of a task, then over the tasks. Failed and unscored
samples are counted separately and never as 0.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from atroposlib.envs.eval import pass_at_k
from atroposlib.envs.function_env.card import Example, card_of
from atroposlib.envs.function_env.config import FunctionEnvConfig
from atroposlib.envs.function_env.data import TaskItem, manager_of
from atroposlib.envs.function_env.recorder import Rollout, Seat, metrics_of
from atroposlib.envs.function_env.rewards import Reward, RewardPlan, call_user
from atroposlib.envs.function_env.rollout_model import Message, Model, OpponentVersion
from atroposlib.envs.rollout.causes import Repeats, gather_probed, returned_none
from atroposlib.envs.rollout.groups import from_node, mean_metrics, standard_errors
from atroposlib.envs.rollout.samples import CONTEXT_FULL, cut_off
from atroposlib.envs.runtime.env_runtime import EnvRuntime
from atroposlib.envs.runtime.evaluation import ROW, ROW_FIELDS
from atroposlib.errors import AtroposError, ConfigError, ContextFull, RolloutError, boundary
from atroposlib.generation.engines.slots import spending, timings
from atroposlib.generation.routing.opponents import OpponentPool, OpponentRecord
from atroposlib.utils.gathering import in_one_task

if TYPE_CHECKING:
    from atroposlib.generation.engines.api_server import APIServer
    from atroposlib.generation.proxy.in_process import AgentSession, RunningProxy

logger = logging.getLogger(__name__)
TOOL_PARSER = "hermes"  # default, if neither flags nor YAML name a parser


class Result(str, Enum):
    """Outcome of a sample of an evaluation."""

    SCORED = "scored"
    UNSCORED = "unscored"  # the function returned None
    FAILED = "failed"


@dataclass(frozen=True)
class EvalSample:
    """A rollout of a held-out task.

    ``numbers`` are the named rewards and ``reward``; ``shown`` goes into samples.jsonl.
    """

    item: TaskItem
    result: Result
    numbers: dict[str, float] = field(default_factory=dict)
    shown: dict[str, Any] = field(default_factory=dict)
    error: AtroposError | None = None

    def line(self) -> dict[str, Any]:
        """Line of samples.jsonl."""
        line = {"id": self.item["id"], "task": self.item["task"], "result": self.result.value}
        if self.error is not None:
            line["error"] = str(self.error)
        return {**line, **self.shown, **self.numbers}


@dataclass
class RolloutRunner:
    """Runs the function of an environment; runs may be concurrent."""

    runtime: EnvRuntime
    config: FunctionEnvConfig
    function: Callable[..., Any]
    plan: RewardPlan
    resources: Any = None  # the value of the lifespan
    examples: Sequence[Example] = ()  # the shown examples and a spare
    # gets each call of a rollout, see ``Model.listener``
    listener: Callable[[str, Sequence[Message], Message], None] | None = None
    opponents: OpponentPool | None = None  # opened with the first opponent
    record: OpponentRecord = field(
        default_factory=OpponentRecord
    )  # games against earlier versions
    _proxy: RunningProxy | None = None
    _starting_proxy: asyncio.Lock = field(default_factory=asyncio.Lock)
    _open_things: AsyncExitStack = field(default_factory=AsyncExitStack)

    def show(self, examples: Sequence[Example]) -> None:
        """Show these examples before each task; the last is a spare."""
        self.examples = examples

    def listen(self, listener: Callable[[str, Sequence[Message], Message], None]) -> None:
        """Give ``listener`` each call of the rollouts from now on."""
        self.listener = listener

    async def train(self, item: TaskItem) -> Rollout:
        """Run a training rollout; the score of its reward may be None.

        Raises:
            RolloutError: the function or a reward failed.
            ConfigError: the function never called the model.
        """
        runtime = self.runtime
        async with AsyncExitStack() as stack:
            spent = stack.enter_context(timings())
            opening = runtime.server.managed_server(tokenizer=runtime.tokenizer)
            session = await stack.enter_async_context(opening)
            model = self._model(item, session, "train", stack)
            reward = await self._play(item, model)
            seats = {
                name: Seat(
                    [from_node(row, 0.0) for row in agent.rows()], score_at(agent, reward)
                )
                for name, agent in model.endpoints.items()
                if name not in model.frozen
            }
            unnamed = seats.pop("", None)
            rows = [*model.recorder.rows(), *(unnamed.rows if unnamed else ())]
            if model.is_context_full and rows:
                rows[-1] = cut_off(rows[-1])
        if (
            not (rows or any(seat.rows for seat in seats.values()))
            and reward.score is not None
        ):
            raise ConfigError(
                f"{runtime.label()}: the rollout of item {item['id']} never called the model, so "
                "there is nothing to train on; return None for a task that is to be left out"
            )
        calls = sum(len(reply.tool_calls) for reply in model.replies)
        counts = {"turns": len(model.replies), "tool_calls": calls} if model.replies else {}
        side = {} if model.role is None else {"role": model.role}
        facts = {"timings": dict(spent), **counts, **side}
        self.record.note(metrics_of(reward), model.opponents, self.config.opponent_score)
        return Rollout(rows, reward, facts, model.is_context_full, seats, model.untrained)

    async def given(
        self, item: TaskItem, session: Any, of_agent: Callable[[str], Any] | None = None
    ) -> tuple[Reward, Model]:
        """Run a rollout on a session of the caller, for example a session of given replies.

        ``of_agent`` gives the session of an endpoint by its name; None: all have ``session``.

        Raises RolloutError: the function or a reward failed.
        """
        async with AsyncExitStack() as stack:
            model = self._model(item, session, "eval", stack, of_agent or (lambda _: session))
            return await self._play(item, model), model

    async def evaluate(self, item: TaskItem) -> EvalSample:
        """Run a rollout of a held-out item, within ``worker_timeout``.

        Raises RolloutError: the function or a reward failed, or took too long.
        """
        timeout_s = limit_s if (limit_s := self.config.worker_timeout) > 0 else None
        with boundary(self.runtime.label(), item["id"], "evaluate"):
            return await asyncio.wait_for(self._evaluate(item), timeout_s)

    async def _evaluate(self, item: TaskItem) -> EvalSample:
        server = self.runtime.server
        async with AsyncExitStack() as stack:
            session: Any = server
            if all(engine.returns_tokens for engine in server.servers):
                # As in training: exactly the same prompt tokens and tool calls.
                opening = server.managed_server(tokenizer=self.runtime.tokenizer)
                session = await stack.enter_async_context(opening)
            model = self._model(item, session, "eval", stack)
            reward = await self._play(item, model)
            rows = model.recorder.rows()
            if not model.replies and session is not server:  # the conversations of agents
                agents = model.trained_endpoints
                rows = [from_node(row, 0.0) for agent in agents for row in agent.rows()]
        result = Result.UNSCORED if reward.score is None else Result.SCORED
        shown: dict[str, Any] = {}
        if model.replies:
            reply = model.replies[-1]
            shown = {"prompt": reply.messages[:-1], "completion": str(reply)}
            shown |= {"tool_calls": reply.tool_calls} if reply.tool_calls else {}
            shown["finish_reason"] = reply.finish_reason
        numbers = metrics_of(reward)
        if model.is_context_full:
            shown["finish_reason"] = "length"
            shown[CONTEXT_FULL] = True
        if rows:
            shown[ROW] = {name: rows[-1].get(name) for name in ROW_FIELDS}
            shown.setdefault("finish_reason", rows[-1].get("finish_reasons"))
        return EvalSample(item, result, numbers, shown)

    async def _play(self, item: TaskItem, model: Model) -> Reward:
        env, name, task = self.runtime.label(), item["id"], item["task"]
        offered = {"config": self.config, "resources": self.resources}
        try:
            with boundary(env, name, "rollout", self.function):
                returned = await self._call_function(item, model, offered)
        except AtroposError as error:
            if isinstance(error, ContextFull) and not model.replies:
                raise RolloutError(env, repr(name), "rollout", error) from error
            if not _ended_by_context(error, model):
                raise
            return with_posted(Reward(self._score_when_full(), {}), model)
        with spending("score"):
            reward = await self.plan.score(env, name, task, returned, offered, self.function)
        return with_posted(reward, model)

    async def _call_function(
        self, item: TaskItem, model: Model, offered: dict[str, Any]
    ) -> Any:
        env, name = self.runtime.label(), item["id"]
        try:
            returned = await call_user(self.function, item["task"], model, **offered)
            model.refuse_forgotten_calls(env, name)
        except (AttributeError, TypeError) as error:
            if "coroutine" in str(error):
                model.refuse_forgotten_calls(env, name)
            raise
        finally:
            model.close_forgotten_calls()
        return returned

    def _score_when_full(self) -> float:
        """Score of a rollout that filled the context before the function returned."""
        if self.config.context_full_score is not None:
            return self.config.context_full_score
        card = card_of(type(self.runtime.env))
        return 0.0 if card is None else card.floor

    def _model(
        self,
        item: TaskItem,
        session: Any,
        split: str,
        stack: AsyncExitStack,
        of_agent: Callable[[str], Any] | None = None,  # None: agents sample from a server
    ) -> Model:
        config = self.config
        chats = [example.messages for example in self.examples if example.id != item["id"]]
        temperature = config.temperature if split == "train" else config.eval_temperature

        async def open_opponent(name: str, version: OpponentVersion) -> AgentSession:
            place = f"{item['id']}@{item['epoch']}"
            server = await self._pool().choose(version, place, name)
            opened = await open_endpoint(name, server)
            opened.version = None if server is None else server.announced_version
            return opened

        async def open_endpoint(name: str, server: APIServer | None = None) -> AgentSession:
            proxy = await self._running_proxy()
            opened = await proxy.open_session(
                self.runtime.server.tool_parser or TOOL_PARSER,
                split=split,
                # A greedy agent would make all samples of a group equal.
                sampling={"temperature": temperature},
                max_tokens=config.max_tokens,
                stop=config.stop,
                describe_tools=config.describe_tools,
                server=server,
            )
            if of_agent is not None:
                opened.sample_from(of_agent(name))
            return await stack.enter_async_context(opened)

        return Model(
            session,
            split=split,
            temperature=temperature,
            max_tokens=config.max_tokens,
            stop=config.stop,
            describe_tools=config.describe_tools,
            examples=[
                message for messages in chats[: config.gold_examples] for message in messages
            ],
            open_endpoint=open_endpoint,
            open_opponent=open_opponent if of_agent is None else None,
            listener=self.listener,
        )

    def _pool(self) -> OpponentPool:
        """The pool of earlier versions, closed with the environment."""
        if self.opponents is None:
            config, servers = self.config, self.runtime.server.servers
            self.opponents = OpponentPool(
                servers, config.opponent_urls, config.opponent_pool, config.seed, self.record
            )
            self._open_things.push_async_callback(self.opponents.close)
        return self.opponents

    async def _running_proxy(self) -> RunningProxy:
        """The proxy of this process, started at the first use of an address."""
        async with self._starting_proxy:
            if self._proxy is None:
                from atroposlib.generation.proxy.in_process import serving_proxy

                runtime = self.runtime
                model = runtime.served_model_name() or "model"
                opening = serving_proxy(runtime.server, runtime.tokenizer, model)
                self._proxy = await self._open_things.enter_async_context(opening)
            return self._proxy

    @property
    def proxy_url(self) -> str | None:
        """Address of the endpoints; None until the first of them is opened."""
        return None if self._proxy is None else self._proxy.url

    async def enter(self, lifespan: Callable[..., Any]) -> None:
        """Enter ``lifespan(config)`` or ``lifespan()``; its value becomes ``resources``."""
        with boundary(self.runtime.label(), None, "entering the lifespan", lifespan):
            opening = in_one_task(manager_of(lifespan, self.config))
            self.resources = await self._open_things.enter_async_context(opening)

    async def close(self) -> None:
        """Leave the lifespan and stop the proxy, if they were started; a failure is logged."""
        try:
            with boundary(self.runtime.label(), None, "leaving the lifespan"):
                await self._open_things.aclose()
        except AtroposError as error:  # must not hide an error that ends the run
            logger.error("%s", error)


def _ended_by_context(error: BaseException, model: Model) -> bool:
    """Whether ``error`` ended a rollout because a prompt no longer fit into the context.

    The error of an agent's client has the type of its library. A rollout without a sample has
    nothing to train: its first prompt is too long.
    """
    if any(agent.is_context_full and agent.rows() for agent in model.trained_endpoints):
        return True
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ContextFull):
        cause = cause.__cause__
    return cause is not None and bool(model.replies)


def score_at(agent: AgentSession, reward: Reward) -> float | None:
    """Score of the rows of an endpoint: its own reward, else the reward of the rollout."""
    return None if reward.score is None else agent.score(reward.score)


def with_posted(reward: Reward, model: Model) -> Reward:
    """``reward`` plus the rewards of the replies; each named endpoint logs ``<name>/reward``.

    An untrained endpoint does so only if it was rewarded: the score of the rollout is not its merit.
    An opponent logs its ``version``, or that there was none (``fallback``).
    """
    if reward.score is None:
        return reward
    unnamed = model.endpoints.get("")
    score = reward.score if unnamed is None else unnamed.score(reward.score)
    score += sum(model.rewards.values())
    named = {
        f"{name}/reward": agent.score(score)
        for name, agent in model.endpoints.items()
        if name and (name not in model.frozen or agent.is_rewarded)
    }
    for name in model.opponents:
        version = model.endpoints[name].version
        named[f"{name}/fallback"] = float(version is None)
        named |= {} if version is None else {f"{name}/version": float(version)}
    return Reward(score, {**reward.metrics, **named})


# --- evaluation ---


async def draw_all(
    items: Sequence[TaskItem],
    times: int,
    draw: Callable[[TaskItem], Awaitable[EvalSample]],  # may raise AtroposError
    *,
    at_once: int,
    tries: int,
    code: Callable[..., Any] | None = None,
    finished: Callable[[EvalSample], None] = lambda sample: None,
) -> list[EvalSample]:
    """``times`` samples of every item; a failed sample is drawn up to ``tries`` times.

    ``finished`` is called with each sample.

    Raises OnlyFailures: a mistake, such as one in the function ``code``, failed all samples of
    the first two items.
    """
    failures = Repeats()

    async def draw_with_retries(item: TaskItem) -> EvalSample:
        for left in reversed(range(tries)):
            try:
                return await draw(item)
            except AtroposError as error:
                failures.count_error(error)
                if left == 0:
                    return EvalSample(item, Result.FAILED, error=error)
        raise AssertionError("unreachable: tries is at least 1")

    async def one(item: TaskItem) -> EvalSample:
        sample = await draw_with_retries(item)
        finished(sample)
        return sample

    def error_of(sample: EvalSample) -> AtroposError | None:
        none = sample.result is Result.UNSCORED
        return returned_none(code, times) if none else sample.error

    drawn = [item for item in items for _ in range(times)]
    return await gather_probed(drawn, lambda item: item["place"], one, error_of, at_once)


def evaluation_metrics(samples: Sequence[EvalSample], times: int) -> dict[str, float]:
    """Metrics of an evaluation.

    Example: {"exact": 0.5, "reward": 0.5, "items": 8, "samples": 8, "failed": 0,
    "unscored": 0}. With several samples of a task also :func:`item_metrics` of it.

    Raises AtroposError: every sample failed; the error of the last sample.
    """
    counts = Counter(sample.result for sample in samples)
    full = sum(CONTEXT_FULL in sample.shown for sample in samples)
    failures = [sample.error for sample in samples if sample.error is not None]
    if failures and len(failures) == len(samples):
        raise failures[-1]
    by_item = metrics_by_item(samples, times)
    return {
        **mean_metrics(by_item),
        "items": len(by_item),
        "samples": len(samples),
        "failed": counts[Result.FAILED],
        "unscored": counts[Result.UNSCORED],
        **({CONTEXT_FULL: full} if full else {}),
    }


def errors_of_means(samples: Sequence[EvalSample], times: int) -> dict[str, float]:
    """The standard error over the tasks of each mean in :func:`evaluation_metrics`."""
    return standard_errors(metrics_by_item(samples, times))


def metrics_by_item(samples: Sequence[EvalSample], times: int) -> list[dict[str, float]]:
    """For each task the means over its samples and, with several, ``pass@k`` and ``best``.

    ``exact_pass@2`` is :func:`pass_at_k` of a measure that is 0 or 1 in all samples, for
    k = 2, 4, 8 ... of at most ``times``; a task with fewer than k samples has none.
    ``digits_best@4`` is the best of the samples, 4 if none failed.
    """
    by_item: dict[str, list[dict[str, float]]] = {}
    for sample in samples:
        if sample.result is Result.SCORED:
            by_item.setdefault(sample.item["id"], []).append(sample.numbers)
    pairs = {pair for sample in samples for pair in sample.numbers.items()}
    graded = {name for name, value in pairs if value not in (0.0, 1.0)}
    powers = [2**n for n in range(1, times.bit_length())]
    means = []
    for numbers in by_item.values():
        metrics = mean_metrics(numbers)
        for name in tuple(metrics) if times > 1 else ():
            values = [number[name] for number in numbers if name in number]
            for k in (k for k in powers if k <= len(values) and name not in graded):
                metrics[f"{name}_pass@{k}"] = pass_at_k(len(values), int(sum(values)), k)
            metrics[f"{name}_best@{times}"] = max(values)
        means.append(metrics)
    return means

"""Environments of this library in verifiers 0.4: what a package of `atropos env export` subclasses.

    class Taskset(ExportedTaskset):
        environment = Wordle  # a function environment
    class Harness(ExportedHarness):
        environment = Wordle

A task is the environment's own, as JSON. The harness runs its function and scores it in this
process; every call of the model goes through the endpoint of verifiers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, cast

import verifiers.v1 as vf
from pydantic import Field

from atroposlib.envs.function_env import FunctionEnv, FunctionEnvConfig, Model
from atroposlib.envs.function_env.card import play, score_session
from atroposlib.envs.function_env.data import Indexed, prepare_tasks, task_id
from atroposlib.envs.function_env.rewards import reward_number
from atroposlib.envs.function_env.rollout_model import client_of
from atroposlib.envs.function_env.rollouts import with_posted
from atroposlib.envs.rollout.groups import plain
from atroposlib.errors import ConfigError

GOLD_SLACK = 0.01  # same value as in `atropos env validate`
REWARD = "atropos"  # key of a trace's ``info``


class ExportedData(vf.TaskData):  # type: ignore[misc]
    """A task of the environment, and the settings of its rollout."""

    prompt: str = ""  # the function makes the prompt; verifiers requires this field
    task: Any = None
    settings: dict[str, Any] = Field(default_factory=dict)
    held_out: bool = False


class ExportedTask(vf.Task[ExportedData]):  # type: ignore[misc]
    """The score of the harness as a single reward, and its parts as metrics."""

    environment: type[FunctionEnv] | None = None  # set by the task set; in no trace

    @vf.reward  # type: ignore[untyped-decorator]
    async def total_reward(self, trace: Any) -> float:
        """The score. Raises TaskError: there is none, which is never a 0."""
        reward = trace.info.get(REWARD)
        if reward is None or reward["score"] is None:
            why = "the environment gave no score" if reward else "run it with its own harness"
            raise vf.TaskError(f"task {self.data.id}: {why}")
        return float(reward["score"])

    @vf.metric  # type: ignore[untyped-decorator]
    async def reward_parts(self, trace: Any) -> dict[str, float]:
        """The named rewards and logged numbers."""
        return dict(trace.info.get(REWARD, {}).get("metrics", {}))

    async def validate(self, runtime: Any) -> bool | None:
        """Whether the gold replies get the best score; None without a card."""
        env_cls = self.environment
        card = env_cls.definition.card if env_cls is not None else None
        if env_cls is None or card is None:
            return None
        task = self.data.task
        reward, _ = await play(env_cls, task, card.gold(task), **self.data.settings)
        return reward.score is not None and reward.score >= card.best - GOLD_SLACK


class ExportedConfig(vf.TasksetConfig):  # type: ignore[misc]
    """Options of the task set."""

    settings: dict[str, Any] = Field(default_factory=dict)
    held_out: bool = False


class ExportedTaskset(vf.Taskset[ExportedTask, ExportedConfig]):  # type: ignore[misc]
    """Tasks of ``environment`` in the order of its data set, once each."""

    environment: ClassVar[type[FunctionEnv]]

    def __init__(self, config: ExportedConfig) -> None:
        super().__init__(config)
        self.rows = self.read()
        self.INFINITE = not isinstance(self.rows, Sequence)

    def read(self) -> Any:
        """The rows, with the data set opened anew."""
        prepared = _prepare_class(self.environment, self.config.settings)
        with ThreadPoolExecutor(1) as aside:  # this thread may have a running loop
            source, held_out = aside.submit(asyncio.run, prepared).result()
        if self.config.held_out:
            return [item["task"] for item in held_out]
        return source.training_rows() if isinstance(source, Indexed) else source.rows

    def load(self) -> Iterator[ExportedTask]:
        config = self.config
        # An iterator ends with its first reader, and views of a task set share it.
        for row in self.read() if isinstance(self.rows, Iterator) else self.rows:
            # form on the wire of an environment server
            row = json.loads(json.dumps(plain(row)))
            about = {"settings": config.settings, "held_out": config.held_out}
            task = ExportedTask(ExportedData(id=task_id(row), task=row, **about), config.task)
            task.environment = self.environment
            yield task


def settings_of(env_cls: type[FunctionEnv], settings: dict[str, Any]) -> FunctionEnvConfig:
    return cast(FunctionEnvConfig, env_cls.env_config_cls(**settings))


async def _prepare_class(env_cls: type[FunctionEnv], settings: dict[str, Any]) -> Any:
    definition, config = env_cls.definition, settings_of(env_cls, settings)
    if config.gold_examples:
        raise ConfigError("gold_examples: verifiers has no examples before a task")
    return await prepare_tasks(
        definition.dataset, definition.eval_dataset, config, env=env_cls.name or ""
    )


class Endpoint:
    """Address of the rollout's model, with the rewards that the function gives it."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self.base_url, self.api_key = base_url, api_key
        self.given: float | None = None

    def reward(self, reward: float, completion_id: str | None = None) -> None:
        if completion_id is not None:
            raise ConfigError("verifiers has one reward per rollout: give no completion_id")
        self.given = reward_number(reward, "the reward of an endpoint")

    def score(self, otherwise: float) -> float:
        return otherwise if self.given is None else self.given

    @property
    def is_rewarded(self) -> bool:
        return self.given is not None

    def listen(self, listener: Callable[..., None]) -> None:
        """Do nothing: verifiers records the calls of a rollout."""


class EndpointSession:
    """Chats of a rollout by the endpoint; ``system_prompt`` replaces the first system message."""

    def __init__(self, client: Any, model: str, system_prompt: str | None) -> None:
        self.client, self.model, self.system_prompt = client, model, system_prompt

    async def chat_completion(self, *, messages: Any, split: str, **body: Any) -> Any:
        if self.system_prompt is not None:
            has_system = bool(messages) and messages[0].get("role") == "system"
            system = {"role": "system", "content": self.system_prompt}
            messages = [system, *messages[has_system:]]
        return await self.client.chat.completions.create(
            model=self.model, messages=messages, **body
        )

    async def completion(self, **_: Any) -> Any:
        raise ConfigError("model.complete: verifiers has no completions, use model.chat")


class ExportedHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """Runs the function of ``environment`` in this process."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False
    environment: ClassVar[type[FunctionEnv]]

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        env_cls, held_out = self.environment, data.held_out
        config = settings_of(env_cls, data.settings)

        async def open_run(_name: str) -> Any:
            return Endpoint(endpoint, secret)

        model = Model(
            None,
            "eval" if held_out else "train",
            config.eval_temperature if held_out else config.temperature,
            config.max_tokens,
            open_endpoint=open_run,
            stop=config.stop,
        )
        async with client_of(endpoint, secret, timeout=None) as client:
            model.session = EndpointSession(client, ctx.model, data.system_prompt)
            reward = with_posted(await score_session(env_cls, data.task, model, config), model)
        trace.info[REWARD] = {"score": reward.score, "metrics": dict(reward.metrics)}
        return vf.ProgramResult(0, "", "")


class ExportedEnvConfig(vf.EnvConfig):  # type: ignore[misc]
    """Agent in this process, instead of in the hosted sandbox of verifiers."""

    agent: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class ExportedEnv(vf.Env[ExportedEnvConfig]):  # type: ignore[misc]
    """Environment with a single rollout per episode."""

    async def run(self, task: Any, agents: Any) -> None:
        await agents.agent.run(task)

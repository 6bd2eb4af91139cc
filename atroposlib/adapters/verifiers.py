"""Task sets and environments of verifiers 0.4, scored by their own rewards.

    atropos env run verifiers:my-taskset process
    atropos env run verifiers:my-taskset serve --env.env_kwargs '{"taskset": {"level": 2}}'

The package runs the rollout, and its calls of the model go to an endpoint of the rollout here.
Needs verifiers and Python 3.11: pip install 'atropos-rl[verifiers]'.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import os
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from pydantic import Field

from atroposlib.adapters import import_package
from atroposlib.envs.function_env import FunctionEnvConfig, Model, Reward, environment
from atroposlib.errors import ConfigError

EXTRA, SERIES = "verifiers", "0.4."
CHAT = "atropos_chat"  # id of our harness, which verifiers imports by this name
NOISY = ("aiohttp.access", "verifiers")  # loggers with lines for each rollout
NOWHERE = "http://127.0.0.1:9/v1"  # address of a seat without an endpoint


class VerifiersConfig(FunctionEnvConfig):
    """Settings of the task set and of its episodes."""

    env_id: str = Field(default="", description="task set: the name of an installed package")
    env_kwargs: dict[str, Any] = Field(
        default_factory=dict,
        description="settings of verifiers under its --env, such as {'taskset': {...}}",
    )
    eval_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="those of other held-out tasks, such as a split"
    )
    max_turns: int = Field(default=16, ge=1, description="most replies of an agent")
    max_token_length: int = Field(default=4096, ge=1, description="most tokens of an agent")
    eval_items: int = Field(default=32, ge=1, description="most held-out tasks evaluated")


def package() -> tuple[Any, str]:
    """``verifiers.v1`` and the version. Raises ConfigError: another version, or none."""
    _, name = import_package("verifiers", EXTRA)
    if not name.startswith(f"{EXTRA} {SERIES}"):
        raise ConfigError(f"{name} is installed: pip install 'atropos-rl[{EXTRA}]'")
    chat = import_module("atroposlib.adapters.inside.verifiers_chat")
    sys.modules.setdefault(CHAT, chat)
    for noisy in NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return import_module("verifiers.v1"), name


def open_package(config: VerifiersConfig, kwargs: Mapping[str, Any]) -> Any:
    """The environment of the package; its agents run in this process, by our harness.

    Raises ConfigError: it is not installed, or its settings are refused.
    """
    vf, _ = package()
    loaders = import_module("verifiers.v1.utils.loaders")
    merged = import_module("verifiers.v1.utils.generic").deep_merge
    if not config.env_id:
        raise ConfigError("--env.env_id: name a task set, as in verifiers:my-taskset")
    try:
        kind = loaders.env_config_type(config.env_id, kwargs.get("id", ""))
        bundled = loaders.default_harness_id(config.env_id) != "bash"
        settings: dict[str, Any] = {"taskset": {"id": config.env_id}}
        for name, field in kind.model_fields.items():
            if isinstance(field.default, vf.AgentConfig):
                settings[name] = seat(config, field.default, bundled)
        return vf.load_environment(loaders.resolve_env_config(merged(settings, dict(kwargs))))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"--env.env_id {config.env_id}: {error}") from error


def seat(config: VerifiersConfig, declared: Any, bundled: bool) -> dict[str, Any]:
    """Settings of an agent that ``env_kwargs`` does not name."""
    harness = declared.harness.id if declared.harness else "bash" if not bundled else ""
    plain = harness == "null" or (harness == "bash" and declared.harness is None)
    return {
        "runtime": {"type": "subprocess"},
        "max_turns": declared.max_turns or config.max_turns,
        "max_total_tokens": max(1, config.max_token_length - config.max_tokens),
        **({"harness": {"id": CHAT}} if plain else {}),
    }


# --- tasks --------------------------------------------------------------------------


def tasks_of(config: VerifiersConfig, tasks: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Tasks as JSON, in the order of the task set; ``source`` goes into the metadata."""
    source = {"package": package()[1], "env_id": config.env_id}
    for task in tasks:
        name = f"{config.env_id}/{task.data.idx if task.data.id is None else task.data.id}"
        data = task.data.model_dump(mode="json")
        yield {"id": name, "source": {**source, "task": name}, "data": data}


def task_from_json(taskset: Any, task: Mapping[str, Any]) -> Any:
    """A task of the package from its JSON."""
    kind = type(taskset).task_type()
    return kind(kind.data_type().model_validate(task["data"]), taskset.config.task)


def training(config: VerifiersConfig) -> Iterable[dict[str, Any]]:
    taskset = open_package(config, config.env_kwargs).taskset
    require_tasks(config, taskset)
    if taskset.bounded:
        return list(tasks_of(config, taskset))
    return tasks_of(config, taskset.skip(0 if config.eval_kwargs else config.eval_items))


def held_out(config: VerifiersConfig) -> list[dict[str, Any]] | None:
    """Tasks of ``eval_kwargs``, else the first of an endless task set."""
    taskset = open_package(config, config.eval_kwargs or config.env_kwargs).taskset
    if taskset.bounded and not config.eval_kwargs:
        return None
    return list(tasks_of(config, itertools.islice(taskset, config.eval_items)))


def require_tasks(config: VerifiersConfig, taskset: Any) -> None:
    """Check the first task. Raises ConfigError: there is none, or it is lost as JSON."""
    first = next(iter(taskset), None)
    if first is None:
        raise ConfigError(f"--env.env_id {config.env_id}: the task set is empty")
    (task,) = tasks_of(config, [first])
    again = task_from_json(taskset, task)
    if type(again) is not type(first) or again.data != first.data:
        raise ConfigError(
            f"--env.env_id {config.env_id}: a task differs after JSON; name its types in "
            "vf.Taskset[...] and vf.Task[...], and exclude no field"
        )


# --- rollouts -----------------------------------------------------------------------


@dataclasses.dataclass
class AgentEndpoints:
    """Endpoints of a rollout, and the variables that hold their keys while it runs."""

    model: Model
    open: ExitStack

    async def take(self, name: str, alone: bool, trainable: bool) -> dict[str, str]:
        """Client settings of an agent; each of several agents has a named endpoint."""
        endpoint = await self.model.endpoint("" if alone else name, trainable=trainable)
        variable = self.open.enter_context(variable_with(endpoint.api_key))
        return {"base_url": endpoint.base_url, "api_key_var": variable}


SEATS: ContextVar[AgentEndpoints] = ContextVar("endpoints")


@contextmanager
def variable_with(key: str) -> Iterator[str]:
    """Name of an environment variable with ``key``: verifiers reads keys from there alone."""
    name = f"ATROPOS_API_KEY_{uuid.uuid4().hex}"  # API_KEY: programs do not inherit it
    os.environ[name] = key
    try:
        yield name
    finally:
        del os.environ[name]


def setup_with_endpoints(env: Any) -> Callable[[Any], Any]:
    """The environment's ``setup`` of an episode, which then gives each agent its endpoint."""
    own, vf = env.setup, package()[0]
    fields = import_module("verifiers.v1.configs.agent").agent_config_fields(env.config)
    ours = [name for name, agent in fields.items() if agent.client is None]

    async def setup(agents: Any) -> None:
        await own(agents)
        for name in ours:
            agent = getattr(agents, name)
            client = await SEATS.get().take(name, len(fields) == 1, agent.trainable)
            agent.ctx = dataclasses.replace(agent.ctx, client=vf.EvalClientConfig(**client))

    return setup


@asynccontextmanager
async def serving(config: VerifiersConfig) -> AsyncIterator[Any]:
    theirs = await asyncio.to_thread(open_package, config, config.env_kwargs)
    theirs.setup = setup_with_endpoints(theirs)
    async with theirs.serving():
        # The shared server would keep a client, 0.8 MB, for each rollout: without it each
        # rollout has a server that ends with it.
        theirs._interception = None
        yield theirs


@environment(training, eval_dataset=held_out, config=VerifiersConfig, lifespan=serving)
async def verifiers(
    task: Any, model: Model, config: VerifiersConfig, resources: Any
) -> Reward:
    """Run an episode, scored by the rewards of its trained agents."""
    vf, _ = package()
    nowhere = vf.EvalClientConfig(base_url=NOWHERE, api_key_var="ATROPOS_NO_API_KEY")
    [slot] = resources.slots(task_from_json(resources.taskset, task), 1)
    with ExitStack() as stack:
        token = SEATS.set(AgentEndpoints(model, stack))
        stack.callback(SEATS.reset, token)
        episode = await resources.run_slot(slot, vf.ModelContext("model", nowhere))
    refuse_failures(episode)
    return episode_reward(episode, model)


def refuse_failures(episode: Any) -> None:
    """Raise for an episode that failed: its reward is 0, which is no score."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not episode.ok or errors:
        what = f"{errors[-1].type}: {errors[-1].message}" if errors else "the episode failed"
        raise RuntimeError(what)
    for trace in episode.traces:
        missing = [name for name, reward in trace.rewards.items() if reward is None]
        if missing:
            raise RuntimeError(f"{trace.stop_condition}: no value of the reward {missing[0]}")


def episode_reward(episode: Any, model: Model) -> Reward:
    """Score of an episode: the mean over its trained agents; each endpoint has its own.

    Raises RuntimeError: no reward, or several rewards of an agent, whose tokens share an
    endpoint.
    """
    trained = [trace for trace in episode.traces if trace.agent.trainable and trace.rewards]
    if not trained:
        raise RuntimeError("the episode has no reward: its task set declares none")
    metrics: dict[str, float] = {}
    for name, traces in episode.by_agent.items():
        own = [trace.reward for trace in traces if trace in trained]
        if len(own) > 1:
            raise RuntimeError(
                f"agent {name} ran {len(own)} times in one episode, each with a reward: which "
                "tokens got which is not known. Freeze it, or run it once per episode"
            )
        if own and name in model.endpoints:
            model.endpoints[name].reward(own[0])
        prefix = "" if len(episode.by_agent) == 1 else f"{name}/"
        metrics |= {prefix + key: value for key, value in numbers(traces[-1]).items()}
    return Reward(sum(trace.reward for trace in trained) / len(trained), metrics)


def numbers(trace: Any) -> dict[str, float]:
    """Metrics and named rewards of a trace, its turns, and whether a limit cut it."""
    rewards = {name: reward.score for name, reward in trace.rewards.items()}
    metrics = {name: value for name, value in trace.metrics.items() if value is not None}
    ends = {"turns": float(trace.num_turns), "truncated": float(trace.is_truncated)}
    return {**metrics, **rewards, **ends}


if __name__ == "__main__":
    verifiers.cli()

"""Environments of verifiers up to 0.2 (``vf.load_environment``), scored by their own rubrics.

    atropos env run verifiers_v0:my-environment process
    atropos env run verifiers_v0:my-environment serve --env.env_kwargs '{"level": 2}'

The package runs the rollout, and its calls of the model go to an endpoint of the rollout here.
Needs verifiers: pip install 'atropos-rl[verifiers-v0]'.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager
from contextvars import ContextVar
from functools import wraps
from importlib import import_module
from typing import Any

from pydantic import Field

from atroposlib.adapters import import_package
from atroposlib.envs.function_env import FunctionEnvConfig, Model, Reward, environment
from atroposlib.envs.function_env.rewards import reward_number
from atroposlib.errors import ConfigError

EXTRA = "verifiers-v0"
SERIES = ("0.1.12", "0.1.14", "0.2.")  # earlier releases have different clients or no clients
SIGNALS = (signal.SIGINT, signal.SIGTERM)
INPUTS = ("prompt", "answer", "info", "example_id")  # a plain ``task`` is refused by 0.2
# failures of a rollout's rewards
FAILURES: ContextVar[list[BaseException]] = ContextVar("failures")


class VerifiersV0Config(FunctionEnvConfig):
    """Settings of the environment."""

    env_id: str = Field(default="", description="the name of an installed environment")
    env_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="arguments of its load_environment"
    )
    max_token_length: int = Field(default=4096, ge=1, description="most tokens of a rollout")


def package() -> tuple[Any, str]:
    """``verifiers`` and its version. Raises ConfigError: another version, or none."""
    vf, name = import_package("verifiers", EXTRA, "verifiers")
    if not name.removeprefix("verifiers ").startswith(SERIES):
        raise ConfigError(f"{name} is installed: pip install 'atropos-rl[{EXTRA}]'")
    logging.getLogger("verifiers").setLevel(logging.WARNING)
    return vf, name


def load_v0_environment(config: VerifiersV0Config) -> Any:
    """The environment, with rewards whose failures are kept. In the main thread only.

    Raises ConfigError: it cannot be loaded, or scores whole groups.
    """
    vf, _ = package()
    if not config.env_id:
        raise ConfigError(
            "--env.env_id: name an environment, as in verifiers_v0:my-environment"
        )
    taken = {kind: signal.getsignal(kind) for kind in SIGNALS}
    try:
        env = vf.load_environment(config.env_id, **config.env_kwargs)
    except (ImportError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"--env.env_id {config.env_id}: {error}") from error
    finally:  # the package replaces the handlers that shut down a run in order
        for kind, handler in taken.items():
            signal.signal(kind, handler)
    rubrics = [env.rubric]
    for rubric in rubrics:
        rubrics += getattr(rubric, "rubrics", ())  # rubrics of a group
        if any(map(rubric._is_group_func, rubric.funcs)):
            what = "its rewards compare the samples of a group, which are apart here"
            raise ConfigError(f"--env.env_id {config.env_id}: {what}")
        rubric.funcs = [keep_failure(function) for function in rubric.funcs]
    return env


def keep_failure(function: Callable[..., Any]) -> Callable[..., Any]:
    """A reward function whose failures are kept: the package scores each failure 0."""

    @wraps(function)
    async def call(*args: Any, **kwargs: Any) -> float:
        with ExitStack() as stack:
            stack.push(
                lambda kind, error, trace: FAILURES.get().append(error) if error else None
            )
            result = function(*args, **kwargs)
            value = await result if asyncio.iscoroutine(result) else result
            return reward_number(value, "a reward")

    return call


def tasks_of(config: VerifiersV0Config, rows: Iterable[Any]) -> list[dict[str, Any]]:
    source = {"package": package()[1], "env_id": config.env_id}
    tasks = []
    for row in rows:
        name = f"{config.env_id}/{row['example_id']}"
        task = {key: row[key] for key in INPUTS if row.get(key) is not None}
        tasks.append({"id": name, "source": {**source, "task": name}, "input": task})
    return tasks


async def training(config: VerifiersV0Config) -> list[dict[str, Any]]:
    return tasks_of(config, load_v0_environment(config).get_dataset())


async def held_out(config: VerifiersV0Config) -> list[dict[str, Any]] | None:
    """The environment's own evaluation data; None if it has only training data."""
    env = load_v0_environment(config)
    env.build_eval_dataset()
    return None if env.eval_dataset is None else tasks_of(config, env.eval_dataset)


@asynccontextmanager
async def lifespan_of(config: VerifiersV0Config) -> AsyncIterator[Any]:
    yield load_v0_environment(config)  # the package ends it when the process exits


@environment(training, eval_dataset=held_out, config=VerifiersV0Config, lifespan=lifespan_of)
async def verifiers_v0(
    task: Any, model: Model, config: VerifiersV0Config, resources: Any
) -> Reward:
    """Run a rollout, scored by the environment's rubric."""
    clients = import_module("verifiers.clients.openai_chat_completions_client")
    failures: list[BaseException] = []
    token = FAILURES.set(failures)
    try:
        async with await model.openai() as client:
            wrapped = clients.OpenAIChatCompletionsClient(client)
            done = await resources.run_rollout(dict(task["input"]), wrapped, "model", {})
    finally:
        FAILURES.reset(token)
    if done["error"] is not None:
        raise RuntimeError(str(done["error"]))
    if failures:
        raise failures[0]
    turns = sum(message["role"] == "assistant" for message in done["completion"] or ())
    metrics = {**done["metrics"], "turns": turns, "truncated": float(done["is_truncated"])}
    return Reward(done["reward"], metrics)


if __name__ == "__main__":
    verifiers_v0.cli()

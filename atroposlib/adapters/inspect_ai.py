"""Tasks of Inspect (inspect-ai), solved by the trained model and scored by their own scorers.

    atropos env run inspect_ai:my_env.py@capitals process
    python -m atroposlib.adapters.inspect_ai serve --env.env_id inspect_evals/gsm8k

A rollout is a sample: its solver calls an endpoint of this rollout. Inspect runs a single eval
per process at a time, so an eval takes all waiting rollouts. Needs: pip install
'atropos-rl[inspect-ai]'.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import math
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any, NamedTuple

from pydantic import Field

from atroposlib.adapters import convert_errors, import_package
from atroposlib.envs.function_env import FunctionEnvConfig, Model, Reward, environment
from atroposlib.errors import ConfigError, RolloutError, boundary

PACKAGE = "inspect-ai"
GRADER = "grader"  # the role that scorers of Inspect judge with
WORDS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}  # Inspect's letters of a verdict
WORDS |= {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}


class InspectConfig(FunctionEnvConfig):
    """Settings of the task."""

    env_id: str = Field(default="", description="FILE.py@TASK, or PACKAGE/TASK if installed")
    env_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="arguments of the task"
    )
    scorer: str = Field(
        default="", description="its score is the reward; empty: the first of the task"
    )
    grader: str = Field(
        default="",
        description="model that judges, as Inspect names it; empty: the trained one, untrained",
    )


class Waiting(NamedTuple):
    """A rollout that waits for the next eval; the result is the log and its sample."""

    sample: Any
    models: Mapping[str, Any]  # keys: roles; "" is the evaluated model
    done: asyncio.Future[tuple[Any, Any]]


@dataclass
class Evals:
    """Evals of a task, run in sequence."""

    task: Any
    waiting: asyncio.Queue[Waiting] = field(default_factory=asyncio.Queue)

    async def solved(self, place: int, models: Mapping[str, Any]) -> tuple[Any, Any]:
        """Log and sample of the next eval that takes the sample number ``place``."""
        done: asyncio.Future[tuple[Any, Any]] = asyncio.get_running_loop().create_future()
        self.waiting.put_nowait(Waiting(self.task.dataset[place], models, done))
        return await done

    async def run(self) -> None:
        """Evaluate waiting samples, without end. A failed eval is the error of all its rollouts."""
        while True:
            batch = [await self.waiting.get()]
            while not self.waiting.empty():
                batch.append(self.waiting.get_nowait())
            try:
                with boundary("inspect_ai", None, "eval"):
                    results = await self._evaluate(batch)
            except RolloutError as error:
                for rollout in batch:
                    if not rollout.done.done():
                        rollout.done.set_exception(error)
                continue
            for rollout, result in zip(batch, results):
                if not rollout.done.done():  # the rollout may have been cancelled
                    rollout.done.set_result(result)

    async def _evaluate(self, batch: list[Waiting]) -> list[tuple[Any, Any]]:
        from inspect_ai import eval_async, task_with

        tasks = [
            task_with(
                copy.copy(self.task),
                dataset=[sample.sample],
                model=sample.models[""],
                model_roles={**(self.task.model_roles or {}), GRADER: sample.models[GRADER]},
                epochs=1,
                fail_on_error=True,
                metadata={"place": place},
            )
            for place, sample in enumerate(batch)
        ]
        quiet: Any = {"ctl_server": False, "score_display": False, "log_realtime": False}
        with tempfile.TemporaryDirectory(prefix="atropos-inspect-") as folder:
            logs = await eval_async(
                tasks, log_dir=folder, max_tasks=len(tasks), max_retries=2, **quiet
            )
            by_place = {log.eval.metadata["place"]: log for log in logs}
            # Samples are read before the folder is deleted.
            ordered = [by_place[place] for place in range(len(batch))]
            return [(log, next(iter(log.samples or ()), None)) for log in ordered]


@lru_cache(maxsize=1)
def load_task(env_id: str, arguments: str) -> Any:
    """The task, without Inspect's display and handler of the root logger.

    Raises ConfigError: the task does not exist or cannot be used here.
    """
    import_package("inspect_ai", PACKAGE)
    try:
        from inspect_ai._eval.loader import load_tasks
        from inspect_ai._util.error import PrerequisiteError
        from inspect_ai._util.logger import init_logger
        from inspect_ai.util._display import init_display_type
    except ImportError as error:
        raise ConfigError(f"{error}: pip install 'atropos-rl[{PACKAGE}]'") from error
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    init_logger("warning")  # acts once per process; every line would come twice
    root.setLevel(level)
    root.handlers[:] = handlers
    own = logging.getLogger("inspect_ai")
    own.handlers.clear()
    own.propagate = True
    own.setLevel(logging.ERROR)  # it warns of every dict of values
    init_display_type("none")
    unusable = (ImportError, LookupError, OSError, TypeError, ValueError, PrerequisiteError)
    with convert_errors(unusable, f"--env.env_id {env_id}", "no task"):
        for entry in registered_by(env_id):
            entry.load()  # Inspect alone would report only that there is no task
        tasks = load_tasks([env_id], json.loads(arguments)) if env_id else []
    if len(tasks) != 1:
        raise ConfigError(
            f"--env.env_id {env_id!r}: {len(tasks)} tasks; write FILE.py@TASK or PACKAGE/TASK"
        )
    [task] = tasks
    boxes = [task.sandbox, *(sample.sandbox for sample in task.dataset)]
    refused = sorted({box.type for box in boxes if box is not None and box.type != "local"})
    if refused:
        raise ConfigError(f"{env_id}: its sandbox is {refused[0]}; only local ones run here")
    if not task.scorer:
        raise ConfigError(f"{env_id}: the task has no scorer, so there is no reward")
    return task


def task_of(config: InspectConfig) -> Any:
    return load_task(config.env_id, json.dumps(config.env_kwargs, sort_keys=True))


def registered_by(env_id: str) -> EntryPoints:
    """The entry points of the package of PACKAGE/TASK."""
    return entry_points(group="inspect_ai", name=env_id.partition("/")[0])


def samples(config: InspectConfig) -> list[dict[str, Any]]:
    task, package = task_of(config), import_package("inspect_ai", PACKAGE)[1]
    source = {"package": package, "env_id": config.env_id}
    for entry in registered_by(config.env_id):
        if entry.dist is not None:
            source["tasks"] = f"{entry.dist.name} {entry.dist.version}"
    names = [str(sample.id or place + 1) for place, sample in enumerate(task.dataset)]
    return [
        {"id": name, "place": place, "source": {**source, "sample": name}}
        for place, name in enumerate(names)
    ]


@asynccontextmanager
async def evals(config: InspectConfig) -> AsyncIterator[Evals]:
    shared = Evals(await asyncio.to_thread(task_of, config))
    running = asyncio.create_task(shared.run())
    try:
        yield shared
    finally:
        running.cancel()
        await asyncio.wait([running])


def number(value: Any) -> float:
    """A score's value. Raises ValueError or TypeError: Inspect would return 0 instead."""
    if isinstance(value, str):
        value = WORDS[value] if value in WORDS else WORDS.get(value.lower(), value)
    return float(value)


def reward_of(log: Any, sample: Any, scorer: str) -> Reward:
    """Reward of a sample, and the values of all its scorers. NaN is no score.

    Raises RuntimeError: the eval, its solver or a scorer failed.
    """
    failure = (sample and sample.error) or log.error
    if log.status != "success" or failure or not (sample and sample.scores):
        what = failure.message if failure else "it has no score"
        raise RuntimeError(f"the eval ended as {log.status}: {what}")
    values = dict[str, float]()
    for name, score in sample.scores.items():
        parts = score.value if isinstance(score.value, dict) else {"": score.value}
        values |= {f"{name}/{key}" if key else name: number(v) for key, v in parts.items()}
    wanted = scorer or next(iter(values))
    if wanted not in values:
        raise ConfigError(f"--env.scorer {scorer}: there are {list(values)}")
    finite = {name: value for name, value in values.items() if not math.isnan(value)}
    limited = {"limited": float(sample.limit is not None)}
    return Reward(finite.get(wanted), {**finite, **limited})


@environment(samples, config=InspectConfig, lifespan=evals)
async def inspect_ai(
    task: Any, model: Model, config: InspectConfig, resources: Evals
) -> Reward:
    """Solve a sample, scored by the task's own scorers."""
    from inspect_ai.model import get_model

    opened = {"": await model.endpoint()}
    if not config.grader:
        opened[GRADER] = await model.endpoint(GRADER, trainable=False)
    async with AsyncExitStack() as clients:
        models = {GRADER: get_model(config.grader)} if config.grader else {}
        for role, at in opened.items():
            where = {"base_url": at.base_url, "api_key": at.api_key, "memoize": False}
            inspect_model = get_model("openai-api/atropos/model", **where)
            models[role] = await clients.enter_async_context(inspect_model)
        log, sample = await resources.solved(task["place"], models)
    return reward_of(log, sample, config.scorer)


if __name__ == "__main__":
    inspect_ai.cli()

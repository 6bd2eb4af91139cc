"""Environments of aviary (fhaviary): tools that change a state, and a reward for each step.

    atropos env run aviary:gsm8k process
    python -m atroposlib.adapters.aviary serve --env.env_id my_package.tasks:MyDataset

A task is an entry of a ``TaskDataset``, by its number. A turn is the tool calls of the model,
or its text without calls; the environment runs the calls. Needs Python 3.11 and: pip install
'atropos-rl[aviary]'.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from pydantic import Field

from atroposlib.adapters import RewardedConfig, convert_errors, import_package
from atroposlib.adapters.turns import Turns
from atroposlib.envs.function_env import Model, Reward, environment
from atroposlib.envs.function_env.tools import object_in

EXTRA = "aviary"
KINDS: dict[str, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}
KINDS |= {"array": list, "object": dict}


class AviaryConfig(RewardedConfig):
    """Settings of the data set and of the turns."""

    env_id: str = Field(
        default="gsm8k", description="data set as aviary names it, or MODULE:CLASS"
    )
    env_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="arguments of the data set"
    )
    eval_items: int = Field(default=-1, description="held-out items evaluated; -1: all")
    max_tokens: int = Field(default=256, ge=1, description="most tokens of one turn")


def dataset_of(config: AviaryConfig) -> Any:
    """The data set. Raises ConfigError: there is none, or its tasks have no numbers."""
    import_package("aviary.core", "fhaviary")
    from aviary.core import TaskDataset

    module, _, name = config.env_id.partition(":")
    errors = (ImportError, AttributeError, LookupError, OSError, TypeError, ValueError)
    reason = "no data set of numbered tasks"
    with convert_errors(errors, f"--env.env_id {config.env_id}", reason):
        if name:
            dataset = getattr(import_module(module), name)(**config.env_kwargs)
        else:
            dataset = TaskDataset.from_name(module, **config.env_kwargs)
        len(dataset)
    return dataset


def tasks(config: AviaryConfig) -> list[dict[str, Any]]:
    count, (_, package) = len(dataset_of(config)), import_package("aviary.core", "fhaviary")
    source = {"package": package, "env_id": config.env_id}
    return [
        {"id": f"{config.env_id}/{n}", "place": n, "source": {**source, "task": n}}
        for n in range(count)
    ]


@asynccontextmanager
async def open_environment(config: AviaryConfig) -> AsyncIterator[Any]:
    yield dataset_of(config)


def mistake(call: Mapping[str, Any], tools: Sequence[Any]) -> str:
    """Reason why a call does not fit the schema of its tool; empty if it does.

    Environments raise for a wrong call, which would fail the rollout for an error of the
    model.
    """
    function = call["function"]
    tool = next((tool for tool in tools if tool.info.name == function["name"]), None)
    if tool is None:
        return f"there is no tool {function['name']!r}, only {[t.info.name for t in tools]}"
    arguments = object_in(function["arguments"])
    if arguments is None:
        return "the arguments are not a JSON object"
    schema = tool.info.parameters
    known = schema.properties if schema else {}
    missing = [name for name in (schema.required if schema else ()) if name not in arguments]
    unknown = [name for name in arguments if name not in known]
    if missing or unknown:
        return f"missing arguments {missing}, unknown ones {unknown}"
    for name, value in arguments.items():
        kind = known[name].get("type")
        truth = isinstance(value, bool) and kind in ("integer", "number")
        if truth or not isinstance(value, KINDS.get(kind, object)):
            return f"{name} is a {kind}"
    return ""


@environment(tasks, config=AviaryConfig, lifespan=open_environment)
async def aviary(task: Any, model: Model, config: AviaryConfig, resources: Any) -> Reward:
    """Play an episode, scored by the environment's own rewards."""
    from aviary.env import EnvsTaskDataset

    env = resources.get_new_env_by_idx(task["place"])
    if isinstance(resources, EnvsTaskDataset):  # returns the same object every time
        env = copy.deepcopy(env)
    try:
        return await play_aviary(env, model, config)
    finally:
        await env.close()


async def play_aviary(env: Any, model: Model, config: AviaryConfig) -> Reward:
    """Play an episode until its end or until a limit."""
    from aviary.core import ToolRequestMessage

    first, tools = await env.reset()
    shown: Any = [
        {"type": "function", "function": tool.info.model_dump(exclude_none=True)}
        for tool in tools
    ]
    news = [message.model_dump() for message in first]
    turns = Turns(model, config, tools=shown)
    refused, done, cut = 0, False, False
    while not (done or cut):
        reply = await turns.ask("".join(str(message["content"]) for message in news), news)
        if reply is None:
            break
        calls = reply.tool_calls
        wrong = [mistake(call, tools) for call in calls]
        if any(wrong):
            refused += 1
            texts = [
                f"error: {why or 'not run, since another call is wrong'}" for why in wrong
            ]
            news = [
                {"role": "tool", "tool_call_id": call["id"], "content": content}
                for call, content in zip(calls, texts)
            ]
            continue
        # A copy: the package changes the arguments that it reads.
        request = ToolRequestMessage(
            content=str(reply) or None, tool_calls=copy.deepcopy(calls)
        )
        messages, reward, done, cut = await env.step(request)
        news = [message.model_dump() for message in messages]
        turns.reward(float(reward))
    score = turns.score(done, added=turns.taken > 0)
    return turns.result(score, done, refused=float(refused))


if __name__ == "__main__":
    aviary.cli()

"""Rows of any data set with rewards of the registry: an environment from YAML alone.

    python environments/dataset_environment.py serve --config sums.yaml

    # sums.yaml
    env:
      dataset_path: sums.jsonl          # or dataset_name: owner/name of the hub
      prompt_field: question
      answer_field: answer
      system_prompt: Put the answer in \\boxed{}.
      reward_functions: [accuracy, {type: format, weight: 0.2}]

The score is the sum of the weighted rewards; each reward is logged by its name. A reward gets
the fields of its row by their names, and ``solution`` and ``ground_truth``.
"""

import asyncio
import json
from functools import cache
from typing import Any

from pydantic import Field

from atroposlib.envs import Reward, environment
from atroposlib.envs.function_env.config import FunctionEnvConfig
from atroposlib.envs.reward_fns.registry import registry
from atroposlib.errors import ConfigError, DatasetUnavailable
from atroposlib.utils.datasets import load_rows

COUNTED = ("id", "completions")  # fields that no reward gets


class DatasetConfig(FunctionEnvConfig):
    """Settings of rows and rewards."""

    dataset_name: str | None = Field(default=None, description="data set on the hub")
    dataset_path: str | None = Field(
        default=None, description="local file or folder instead of the hub"
    )
    dataset_subset: str | None = Field(default=None, description="subset on the hub, if any")
    split: str = Field(default="train", description="split that is trained on")
    eval_dataset_name: str | None = Field(
        default=None, description="data set that is evaluated; None: the same"
    )
    eval_split: str | None = Field(
        default=None, description="split that is evaluated; None: eval_fraction is held out"
    )
    prompt_field: str = Field(default="prompt", description="text or messages of the prompt")
    answer_field: str = Field(default="answer", description="solution, if rows have one")
    ground_truth_field: str | None = Field(
        default=None, description="ground truth of rewards; None: the answer"
    )
    system_prompt: str | None = Field(default=None, description="before the prompt")
    prefill: str | None = Field(default=None, description="text that every reply begins with")
    temperature: float = Field(default=0.7, ge=0, description="of training rollouts")
    top_p: float = Field(default=0.9, gt=0, le=1, description="of training rollouts")
    max_tokens: int = Field(default=4096, ge=1, description="most tokens of one reply")
    reward_functions: list[str | dict[str, Any]] = Field(
        default_factory=list, description="names, or {type, weight, params} (docs/rewards.md)"
    )


def task(name: str, row: dict[str, Any], config: DatasetConfig) -> dict[str, Any]:
    """{"id", "messages", "columns"}: the prompt, and the columns for rewards."""
    prompt = row.get(config.prompt_field)
    if not isinstance(prompt, (str, list)) or not prompt:
        raise DatasetUnavailable(
            f"{name}: {config.prompt_field!r} is no text and no messages; it has {sorted(row)}: "
            "set --env.prompt_field"
        )
    messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    if config.system_prompt:
        messages = [{"role": "system", "content": config.system_prompt}, *messages]
    answer = row.get(config.answer_field)
    columns = {key: value for key, value in row.items() if key not in COUNTED}
    columns["solution"] = answer
    columns["ground_truth"] = row.get(config.ground_truth_field or config.answer_field)
    return {"id": name, "messages": messages, "columns": columns}


def tasks(config: DatasetConfig, source: str | None, split: str) -> list[dict[str, Any]]:
    """Tasks of a split. Raises ConfigError, UnknownReward or DatasetUnavailable."""
    if not config.reward_functions:
        raise ConfigError("name --env.reward_functions: docs/rewards.md lists them")
    rewards_of(config)  # a wrong name ends the run at its start
    if source is None and config.dataset_path is None:
        raise ConfigError("name --env.dataset_path or --env.dataset_name")
    path, subset = config.dataset_path, config.dataset_subset
    rows = load_rows(source or str(path), split, path=path, subset=subset)
    return [task(f"{split}/{i}", row, config) for i, row in enumerate(rows)]


def training_items(config: DatasetConfig) -> list[dict[str, Any]]:
    return tasks(config, config.dataset_name, config.split)


def test_items(config: DatasetConfig) -> list[dict[str, Any]] | None:
    if not config.eval_split:
        return None
    return tasks(config, config.eval_dataset_name or config.dataset_name, config.eval_split)


def rewards_of(config: DatasetConfig) -> dict[str, tuple[Any, float]]:
    """Rewards and weights by name. Raises ConfigError: a repeated name, or from the registry."""
    return _reward_functions(json.dumps(config.reward_functions))


@cache  # some load a model
def _reward_functions(wanted: str) -> dict[str, tuple[Any, float]]:
    rewards = {}
    for source in json.loads(wanted):
        reward = registry.create(source)
        name = source if isinstance(source, str) else source.get("name", source["type"])
        if name in rewards:
            raise ConfigError(f"--env.reward_functions: {name!r} twice: give each a 'name'")
        rewards[name] = reward, reward.weight
        reward.weight = 1.0  # its own score is logged
    return rewards


async def answer_of(model: Any, messages: list[dict[str, str]], config: DatasetConfig) -> str:
    """The reply, with the prefill it began with."""
    sampling = {"top_p": config.top_p} if model.split == "train" else {}
    if config.prefill is None:
        return str(await model.chat(messages, **sampling))
    render = model.session.tokenizer.apply_chat_template
    prompt = render(messages, tokenize=False, add_generation_prompt=True) + config.prefill
    return config.prefill + await model.complete(prompt, **sampling)


@environment(training_items, eval_dataset=test_items, config=DatasetConfig)
async def dataset_environment(task, model, config):
    """Rows of a data set, scored by rewards that the settings name."""
    text = await answer_of(model, task["messages"], config)
    total, numbers = 0.0, {}
    for name, (reward, weight) in rewards_of(config).items():
        # In a thread: math-verify and embeddings take long.
        (score,) = await asyncio.to_thread(reward, [text], **task["columns"])
        if score is None and weight:
            return None
        if score is not None:
            numbers[name] = score
            total += weight * score
    return Reward(total, numbers)


if __name__ == "__main__":
    dataset_environment.cli()

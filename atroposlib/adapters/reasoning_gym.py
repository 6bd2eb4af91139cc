"""Procedural tasks of the reasoning-gym package, scored by the package.

    python -m atroposlib.adapters.reasoning_gym serve
    python -m atroposlib.adapters.reasoning_gym process --env.dataset_name spell_backward
    python -m atroposlib.adapters.reasoning_gym evaluate --env.dataset_name gcd \\
        --env.dataset_kwargs '{"max_value": 20}'

A model of 135 M parameters learns the default task, sums and differences of two single-digit
numbers, on a laptop. The scored part of a reply is the last <answer>...</answer>, else the
text after the last "Answer:" on its line, else the last line. Needs reasoning-gym: pip install
'atropos-rl[reasoning-gym]'.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pydantic import Field

from atroposlib.adapters import import_package
from atroposlib.envs.function_env import FunctionEnvConfig, Model, environment
from atroposlib.envs.function_env.card import Card, Replies
from atroposlib.envs.function_env.data import task_id
from atroposlib.errors import ConfigError

# Settings for the smallest models, where the defaults of a data set are too hard.
EASY: dict[str, dict[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
}
ARGUMENT = "dataset_name"  # setting given by a reference like reasoning_gym:chain_sum
TAGGED = re.compile(r"<answer>(.*?)</answer>", flags=re.DOTALL)
NAMED = re.compile(r".*answer:[ \t]*(.+)", flags=re.IGNORECASE)


class ReasoningGymConfig(FunctionEnvConfig):
    """Settings of the tasks; the changed defaults suit a small model on a CPU."""

    group_size: int = Field(
        default=8, ge=1, description="answers to one task, scored together"
    )
    max_token_length: int = Field(default=256, ge=1, description="most tokens of a sequence")
    max_batches_offpolicy: int = Field(default=1, description="batches generated ahead")
    ensure_scores_are_not_same: bool = Field(default=False, description="drop equal scores")
    dataset_name: str = Field(default="chain_sum", description="as reasoning-gym calls it")
    dataset_kwargs: dict[str, Any] | None = Field(
        default=None,
        description="its settings; None: two terms of one digit for chain_sum, else its own",
    )
    dataset_size: int = Field(
        default=1000, ge=2, description="tasks made, from seed; equal questions count once"
    )
    eval_items: int = Field(default=64, ge=1, description="held-out tasks evaluated")
    system_prompt: str = Field(
        default="Answer with only the result.", description="before the question; empty: none"
    )
    examples: int = Field(
        default=1,
        ge=0,
        description="solved tasks shown before each question, as earlier turns",
    )
    # Short, because the package gives a partial score to an answer anywhere in a text: a model
    # that may write "7 + 9 = 16" learns to repeat the question.
    max_tokens: int = Field(default=5, ge=1, description="most tokens of an answer")


def answer_part(text: str) -> str | None:
    """The scored part of a reply; None without text.

    "<answer>7</answer>, I think" is "7", "so\\nAnswer: 7" is "7", "3 + 4\\n7\\n" is "7".
    """
    for pattern in (TAGGED, NAMED):
        if matches := pattern.findall(text):
            return str(matches[-1]).strip()
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else None


def make_dataset(config: ReasoningGymConfig) -> tuple[Any, str]:
    """A data set of the package, and the package's version.

    Raises ConfigError: the package is missing, does not have the data set, or refuses its
    settings.
    """
    package, version = import_package("reasoning_gym", "reasoning-gym")
    name, chosen = config.dataset_name, config.dataset_kwargs
    chosen = EASY.get(name, {}) if chosen is None else chosen
    size = {"size": config.dataset_size, "seed": config.seed}
    try:
        return package.create_dataset(name, **size, **chosen), version
    except (ValueError, TypeError, AssertionError) as error:  # AssertionError: its validation
        raise ConfigError(
            f"--env.dataset_name {name} --env.dataset_kwargs {chosen}: {error}"
        ) from error


def tasks(config: ReasoningGymConfig) -> list[dict[str, Any]]:
    """A task per question text, so that no question is on both sides of the split.

    The first ``examples`` are shown solved before the question of each remaining task.
    """
    dataset, version = make_dataset(config)
    entries: dict[str, Any] = {}
    for entry in map(dataset.__getitem__, range(len(dataset))):
        entries.setdefault(entry["question"], entry)
    first = [{"role": "system", "content": config.system_prompt}] * bool(config.system_prompt)
    for question in list(entries)[: config.examples]:
        first.append({"role": "user", "content": question})
        first.append({"role": "assistant", "content": entries.pop(question)["answer"]})
    if len(entries) < 2:
        raise ConfigError(
            f"--env.dataset_name {config.dataset_name}: too few distinct questions to hold"
            " any out; raise --env.dataset_size or widen --env.dataset_kwargs"
        )
    source = {"package": version, "env_id": config.dataset_name, "seed": config.seed}
    return [
        {
            "id": f"{config.dataset_name}/{task_id(question)}",
            "entry": entry,
            "messages": [*first, {"role": "user", "content": question}],
            "source": {**source, "index": entry["metadata"].get("source_index")},
        }
        for question, entry in entries.items()
    ]


@asynccontextmanager
async def scorer(config: ReasoningGymConfig) -> AsyncIterator[Any]:
    yield (await asyncio.to_thread(make_dataset, config))[0]


def gold(task: Any) -> Replies:
    """The package's answer; none where several are right and it gives no example."""
    answer = task["entry"]["answer"]
    return () if answer is None else f"<answer>{answer}</answer>"


@environment(
    tasks,
    config=ReasoningGymConfig,
    card=Card(
        "puzzles",
        "made by reasoning-gym",
        "Apache-2.0",
        gold,
        extras="atropos-rl[reasoning-gym]",
        floor=0.05,  # the package gives up to this for any answer of about the right length
    ),
    lifespan=scorer,
    rewards={"score": 1.0, "exact": 0.0},
)
async def reasoning_gym(task: Any, model: Model, resources: Any) -> dict[str, Any]:
    """Ask the package's question; the package scores the answer from 0 to 1."""
    answer = answer_part(await model.chat(task["messages"]))
    score = await asyncio.to_thread(resources.score_answer, answer=answer, entry=task["entry"])
    return {"score": float(score), "exact": score >= 1.0}


if __name__ == "__main__":
    reasoning_gym.cli()

"""Procedural tasks of the reasoning-gym package, scored by the package.

    python environments/reasoning_gym_server.py serve
    python environments/reasoning_gym_server.py process --env.dataset_name spell_backward
    python environments/reasoning_gym_server.py evaluate --env.dataset_name gcd \\
        --env.dataset_kwargs '{"max_value": 20}'

A model of 135 M parameters learns the default task, sums and differences of two one-digit
numbers, on a laptop. The scored part of a reply is the last <answer>...</answer>, else the text
after the last "Answer:" on its line, else the last line.
Needs reasoning-gym: pip install 'atroposlib[reasoning-gym]'.
"""

import asyncio
import re
from typing import Any

from pydantic import Field

from atroposlib.environments.common.rollouts import SampledConfig
from atroposlib.environments.common.short_answers import ShuffledEnv, texts_of
from atroposlib.envs.function_env.data import split_held_out, task_id
from atroposlib.errors import ConfigError

# Settings for the smallest models, where the defaults of a data set are too hard.
EASY: dict[str, dict[str, Any]] = {
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
}
TAGGED = re.compile(r"<answer>(.*?)</answer>", flags=re.DOTALL)
NAMED = re.compile(r".*answer:[ \t]*(.+)", flags=re.IGNORECASE)


class ReasoningGymConfig(SampledConfig):
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
    eval_fraction: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="share of the questions held out, independent of the seed",
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
    max_new_tokens: int = Field(default=5, ge=1, description="most tokens of an answer")


def extracted(text: str) -> str | None:
    """The scored part of a reply; None without one.

    "<answer>7</answer>, I think" is "7", "so\\nAnswer: 7" is "7", "3 + 4\\n7\\n" is "7".
    """
    for pattern in (TAGGED, NAMED):
        if found := pattern.findall(text):
            return found[-1].strip()
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else None


def make_dataset(name: str, settings: dict[str, Any] | None, size: int, seed: int) -> Any:
    """A reasoning-gym data set.

    Raises ConfigError: the package is missing, has no such data set, or refuses its settings.
    """
    try:
        import reasoning_gym
    except ImportError as error:
        raise ConfigError(
            "needs reasoning-gym: pip install 'atroposlib[reasoning-gym]'"
        ) from error
    chosen = EASY.get(name, {}) if settings is None else settings
    try:
        return reasoning_gym.create_dataset(name, size=size, seed=seed, **chosen)
    except (ValueError, TypeError, AssertionError) as error:  # AssertionError: its validation
        raise ConfigError(
            f"--env.dataset_name {name} --env.dataset_kwargs {chosen}: {error}"
        ) from error


class ReasoningGymEnv(ShuffledEnv):
    """Asks the package's questions; the package scores the answers."""

    name = "reasoning_gym"
    env_config_cls = ReasoningGymConfig

    async def setup(self):
        config = self.config
        self.dataset = await asyncio.to_thread(
            make_dataset,
            config.dataset_name,
            config.dataset_kwargs,
            config.dataset_size,
            config.seed,
        )
        tasks = await asyncio.to_thread(self.distinct_tasks)
        self.shown, tasks = tasks[: config.examples], tasks[config.examples :]
        trained, held_out = split_held_out(tasks, config.eval_fraction)
        self.train = [tasks[i] for i in trained]
        self.held_out = [tasks[i] for i in held_out][: config.eval_items]
        if not self.held_out:
            raise ConfigError(
                f"--env.dataset_name {config.dataset_name}: too few distinct questions to hold"
                " any out; raise --env.dataset_size or widen --env.dataset_kwargs"
            )

    def distinct_tasks(self):
        """One task per question text, so that no question is on both sides of the split."""
        entries = {}
        for index in range(len(self.dataset)):
            entry = self.dataset[index]
            entries.setdefault(entry["question"], entry)
        return [
            {"id": f"{self.config.dataset_name}/{task_id(question)}", "entry": entry}
            for question, entry in entries.items()
        ]

    def messages(self, item):
        """The prompt: system, solved examples, question."""
        turns = []
        if self.config.system_prompt:
            turns.append({"role": "system", "content": self.config.system_prompt})
        for example in self.shown:
            turns.append({"role": "user", "content": example["entry"]["question"]})
            turns.append({"role": "assistant", "content": example["entry"]["answer"]})
        return [*turns, {"role": "user", "content": item["entry"]["question"]}]

    async def scored(self, item, choices):
        texts = texts_of(choices)
        rewards = await asyncio.to_thread(self.scores, texts, item["entry"])
        return [
            {
                "prompt": item["entry"]["question"],
                "completion": text,
                "expected": item["entry"]["answer"],
                "reward": reward,
                "exact": reward >= 1.0,
            }
            for text, reward in zip(texts, rewards)
        ]

    def scores(self, texts, entry):
        """Scores of the package, 0 to 1; some tasks give partial scores."""
        return [
            float(self.dataset.score_answer(answer=extracted(text), entry=entry))
            for text in texts
        ]


if __name__ == "__main__":
    ReasoningGymEnv.cli()

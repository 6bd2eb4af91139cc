"""Base of environments with a question and an answer.

A subclass loads ``train`` and ``test`` in ``setup``, and defines the prompt (``messages``) and
the reward of an answer (``judge``). Items are mappings with an ``id``.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from atroposlib.environments.common.rollouts import (
    MIN_TRAINED_TOKENS,
    SampledConfig,
    SequentialEnv,
    draw_full,
    mean,
    tokens_left,
    trained_tokens,
)
from atroposlib.envs.rollout.groups import from_nodes
from atroposlib.envs.runtime.evaluation import default_errors
from atroposlib.utils.datasets import LOCAL_ROWS
from atroposlib.utils.gathering import gather_bounded

Message = dict[str, str]


class SingleTurnConfig(SampledConfig):
    """Settings of environments with a question per item."""

    group_size: int = Field(
        default=8, ge=1, description="answers to one question, scored together"
    )
    dataset_path: Annotated[str | None, LOCAL_ROWS] = Field(
        default=None,
        description="a .jsonl, .json or .parquet file, or a folder of them named by split; "
        "None: the hub",
    )
    eval_temperature: float = Field(default=0.6, description="of evaluation")
    eval_problems: int = Field(
        default=-1, ge=-1, description="held-out questions evaluated; -1: all"
    )


class SingleTurnEnv(SequentialEnv):
    """Samples, rewards and evaluates; ``group_scores`` scores a whole group."""

    config: SingleTurnConfig
    env_config_cls = SingleTurnConfig

    # --- for subclasses -----------------------------------------------------------------

    @abstractmethod
    def messages(self, item: dict[str, Any]) -> list[Message]:
        """Messages of the prompt."""

    @abstractmethod
    async def judge(self, item: dict[str, Any], text: str) -> float | None:
        """Reward of an answer, above 0 if it is right; None if it could not be checked."""

    def group_scores(self, rewards: list[float], lengths: list[int]) -> list[float]:
        """Scores of a group from its rewards and the tokens of its sequences, both (G,)."""
        return rewards

    # --- the loop -----------------------------------------------------------------------

    async def sample(
        self, item: dict[str, Any], n: int, temperature: float, split: str
    ) -> list[tuple[Any, Any, float | None]]:
        """``n`` answers to ``item``, each as (choice, token-exact node, reward)."""
        messages = self.messages(item)
        tokens = tokens_left(self.tokenizer, messages, self.config.max_token_length)
        answers = await self.answers(messages, n, tokens, temperature, split)
        return [
            (choice, node, await self.judge(item, choice.message.content or ""))
            for choice, node in answers
        ]

    async def collect_trajectories(self, item: dict[str, Any]) -> tuple[Any, list[Any]]:
        temperature = self.config.temperature
        rows = await draw_full(
            lambda n: self.sample(item, n, temperature, "train"),
            self.config.group_size,
            lambda row: row[2] is not None and trained_tokens(row[1]) >= MIN_TRAINED_TOKENS,
        )
        if rows is None:
            return None, []
        nodes = [node for _, node, _ in rows]
        rewards = [reward for _, _, reward in rows if reward is not None]
        messages = None
        if self.config.include_messages:
            messages = [
                [*self.messages(item), {"role": "assistant", "content": c.message.content}]
                for c, _, _ in rows
            ]
        group = from_nodes(
            nodes,
            self.group_scores(rewards, [len(node.tokens) for node in nodes]),
            messages=messages,
            metrics={"percent_correct": mean(reward > 0 for reward in rewards)},
        )
        return group, []

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        started, temperature = time.time(), self.config.eval_temperature
        wanted = self.config.eval_problems
        problems: Sequence[dict[str, Any]] = self.test if wanted < 0 else self.test[:wanted]

        async def one(item: dict[str, Any]) -> dict[str, Any]:
            ((choice, _, reward),) = await self.sample(item, 1, temperature, "eval")
            return {
                "id": item["id"],
                "prompt": self.messages(item)[-1]["content"],
                "completion": choice.message.content,
                "expected": item.get("answer"),
                "finish_reason": choice.finish_reason,
                "reward": reward,
                "exact": reward is not None and reward > 0,
            }

        samples = await gather_bounded(problems, one, self.config.max_eval_workers)
        right = mean(sample["exact"] for sample in samples)
        errors = default_errors(samples, {"exact": right})
        await self.evaluate_log(
            {  # over all questions: an unchecked answer does not count as right
                "percent_correct": right,
                "unjudged": sum(sample["reward"] is None for sample in samples),
            },
            start_time=started,
            generation_parameters={"temperature": temperature},
            samples=samples,
            stderr={"percent_correct": error for error in errors.values()},
        )

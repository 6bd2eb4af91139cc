"""Base of environments with short answers scored from 0 to 1, and held-out items.

A subclass loads its items and ``held_out`` in ``setup``, and defines the prompt (``messages``),
the length limit of an answer (``answer_tokens``) and the scores (``scored``).
"""

from __future__ import annotations

import asyncio
import random
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from atroposlib.environments.common.rollouts import SequentialEnv, mean
from atroposlib.envs.rollout.groups import from_nodes

Item = dict[str, Any]


class ShortAnswerEnv(SequentialEnv):
    """Trains on groups of answers, and evaluates every held-out item."""

    held_out: list[Item]

    # --- for subclasses -----------------------------------------------------------------

    @abstractmethod
    def messages(self, item: Item) -> list[dict[str, str]]:
        """Messages of the prompt."""

    @abstractmethod
    async def scored(self, item: Item, choices: Sequence[Any]) -> list[dict[str, Any]]:
        """A dict per choice: prompt, completion, expected, reward, exact."""

    def answer_tokens(self) -> int:
        """Maximum number of tokens of an answer."""
        limit: int = self.config.max_new_tokens
        return limit

    def eval_samples(self) -> int:
        """Number of answers to each held-out item."""
        return 1

    # --- the loop -----------------------------------------------------------------------

    async def collect_trajectories(self, item: Item) -> tuple[Any, list[Any]]:
        config = self.config
        answers, nodes = await self.ask(item, config.group_size, config.temperature)
        group = from_nodes(
            nodes,
            [answer["reward"] for answer in answers],
            metrics={"exact": mean(answer["exact"] for answer in answers)},
        )
        return group, []  # no backlog

    async def ask(
        self, item: Item, n: int, temperature: float, split: str = "train"
    ) -> tuple[list[dict[str, Any]], list[Any]]:
        """``n`` scored answers to ``item``, and their token-exact nodes in the same order."""
        limit = self.answer_tokens()
        answers = await self.answers(self.messages(item), n, limit, temperature, split)
        scored = await self.scored(item, [choice for choice, _ in answers])
        return [{"id": item["id"], **numbers} for numbers in scored], [
            node for _, node in answers
        ]

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        started, temperature = time.time(), self.config.eval_temperature
        calls = [
            self.ask(item, self.eval_samples(), temperature, split="eval")
            for item in self.held_out
        ]
        samples = [answer for answers, _ in await asyncio.gather(*calls) for answer in answers]
        await self.evaluate_log(
            {
                "exact": mean(sample["exact"] for sample in samples),
                "reward": mean(sample["reward"] for sample in samples),
            },
            start_time=started,
            generation_parameters={"temperature": temperature},
            samples=samples,
        )


class ShuffledEnv(ShortAnswerEnv):
    """Iterates over ``train`` in an order drawn for every pass from ``seed``."""

    async def get_next_item(self) -> Item:
        epoch, position = divmod(self.iter, len(self.train))
        self.iter += 1
        shuffled = random.Random(f"{self.config.seed}/{epoch}")
        return shuffled.sample(self.train, len(self.train))[position]


def texts_of(choices: Sequence[Any]) -> list[str]:
    return [choice.message.content or "" for choice in choices]

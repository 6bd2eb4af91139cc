"""Base of environments with short answers scored from 0 to 1, and held-out items.

A subclass loads its items and ``held_out`` in ``setup``, and defines the prompt (``messages``),
the length limit of an answer (``answer_tokens``) and the scores (``scored``).
"""

from __future__ import annotations

import asyncio
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from atroposlib.environments.common.rollouts import mean
from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig
from atroposlib.envs.rollout.groups import from_nodes

Item = dict[str, Any]


class ShortAnswerEnv(BaseEnv, ABC):
    """Trains on groups of answers, and evaluates every held-out item."""

    env_config_cls: type[BaseEnvConfig]
    held_out: list[Item]
    iter = 0

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, list[APIServerConfig]]:
        server = APIServerConfig(base_url="http://localhost:9001/v1", server_type="vllm")
        return cls.env_config_cls(), [server]

    # --- for subclasses -----------------------------------------------------------------

    @abstractmethod
    def messages(self, item: Item) -> list[dict[str, str]]:
        """Messages of the prompt."""

    @abstractmethod
    async def scored(self, item: Item, choices: Sequence[Any]) -> list[dict[str, Any]]:
        """One dict per choice: prompt, completion, expected, reward, exact."""

    def answer_tokens(self) -> int:
        """Maximum number of tokens of an answer."""
        limit: int = self.config.max_new_tokens
        return limit

    def eval_samples(self) -> int:
        """Number of answers to each held-out item."""
        return 1

    # --- the loop -----------------------------------------------------------------------

    async def collect_trajectories(self, item: Item) -> tuple[Any, list[Any]]:
        temperature = self.config.temperature
        answers, nodes = await self.ask(item, self.config.group_size, temperature)
        group = from_nodes(
            nodes,
            [answer["reward"] for answer in answers],
            generation_params={"temperature": temperature},
            metrics={"exact": mean(answer["exact"] for answer in answers)},
        )
        return group, []  # no backlog

    async def ask(
        self, item: Item, n: int, temperature: float, split: str = "train"
    ) -> tuple[list[dict[str, Any]], list[Any]]:
        """``n`` scored answers to ``item``, and their token-exact nodes in the same order."""
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            completion = await managed.chat_completion(
                messages=self.messages(item),
                n=n,
                max_tokens=self.answer_tokens(),
                temperature=temperature,
                split=split,
            )
            nodes = managed.nodes_for(completion)
        return await self.scored(item, completion.choices), nodes

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        started, temperature = time.time(), self.config.eval_temperature
        asked = [
            self.ask(item, self.eval_samples(), temperature, split="eval")
            for item in self.held_out
        ]
        samples = [answer for answers, _ in await asyncio.gather(*asked) for answer in answers]
        await self.evaluate_log(
            {
                "exact": mean(sample["exact"] for sample in samples),
                "reward": mean(sample["reward"] for sample in samples),
            },
            start_time=started,
            end_time=time.time(),
            generation_parameters={"temperature": temperature},
            samples=samples,
        )

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        super().save_checkpoint(step, {"iter": self.iter})


class ShuffledEnv(ShortAnswerEnv, ABC):
    """Iterates over ``train`` in an order drawn for every pass from ``seed``."""

    train: list[Item]

    async def get_next_item(self) -> Item:
        epoch, position = divmod(self.iter, len(self.train))
        self.iter += 1
        shuffled = random.Random(f"{self.config.seed}/{epoch}")
        return shuffled.sample(self.train, len(self.train))[position]


def texts_of(choices: Sequence[Any]) -> list[str]:
    """Text of each choice."""
    return [choice.message.content or "" for choice in choices]

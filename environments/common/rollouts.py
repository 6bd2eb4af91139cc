"""Base of environments over a list of items: sampling of answers and turns, held-out items."""

from __future__ import annotations

import random
from abc import ABC
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig
from atroposlib.errors import ConfigError
from atroposlib.wire import MASKED

if TYPE_CHECKING:
    from atroposlib.envs.reward_fns.math_verify.checker import MathVerifier

R = TypeVar("R")
Answer = tuple[Any, Any]  # a choice of a completion, and its token-exact node

MIN_TRAINED_TOKENS = 10  # shorter answers are empty turns, which would train silence
TEMPLATE_TOKENS = 32  # upper bound of the template text around a message


class SampledConfig(BaseEnvConfig):
    """Settings of environments that sample answers."""

    temperature: float = Field(1.0, description="of training rollouts")
    eval_temperature: float = Field(0.0, description="of evaluation; 0: greedy")


class SequentialEnv(BaseEnv, ABC):
    """Iterates over the items of ``train``, which ``setup`` loads, in order and repeatedly."""

    env_config_cls: type[BaseEnvConfig]
    default_settings: dict[str, Any] = {}  # defaults of the environment that differ
    train: list[dict[str, Any]]
    test: list[dict[str, Any]]
    iter = 0
    verifier: MathVerifier | None = None  # set up by environments that check mathematics

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, APIServerConfig]:
        return cls.env_config_cls(**cls.default_settings), APIServerConfig(
            base_url="http://localhost:9001/v1", server_type="vllm", num_requests_for_eval=256
        )

    def hold_out(self, items: list[dict[str, Any]], count: int) -> None:
        """Shuffle ``items`` by the seed; ``test`` gets ``count`` items, at most half."""
        random.Random(self.config.seed).shuffle(items)
        held_out = min(count, len(items) // 2)
        self.test, self.train = items[:held_out], items[held_out:]

    async def get_next_item(self) -> dict[str, Any]:
        item = self.train[self.iter % len(self.train)]
        self.iter += 1
        return item

    async def answers(
        self,
        messages: Sequence[Any],
        n: int,
        max_tokens: int,
        temperature: float,
        split: str = "train",
    ) -> list[Answer]:
        """``n`` answers to ``messages`` of at most ``max_tokens`` tokens, at least 1."""
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            completion = await managed.chat_completion(
                messages=messages,
                n=n,
                max_tokens=max(1, max_tokens),
                temperature=temperature,
                split=split,
            )
            return list(zip(completion.choices, managed.nodes_for(completion)))

    async def next_turn(
        self,
        managed: Any,
        messages: Sequence[Any],
        node: Any,
        temperature: float,
        split: str,
        **template: Any,
    ) -> Answer | None:
        """The model's next turn after the sequence ``node``; None if it does not fit.

        Raises ConfigError if the chat template rewrote earlier turns, so the turns do not join.
        """
        limit: int = self.config.max_token_length
        tokens = tokens_left(self.tokenizer, messages, limit, node, **template)
        if tokens < 1:
            return None
        completion = await managed.chat_completion(
            messages=messages,
            max_tokens=min(tokens, self.config.max_turn_tokens),
            temperature=temperature,
            split=split,
            **template,
        )
        longer = managed.nodes_for(completion)[0]
        if node is not None and longer.tokens[: len(node.tokens)] != node.tokens:
            raise ConfigError(
                "the turns of a conversation do not join into one token sequence: the "
                "tokenizer's chat template rewrites earlier turns; set --env.tokenizer_name to "
                "one whose template keeps them"
            )
        return completion.choices[0], longer

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        super().save_checkpoint(step, {"iter": self.iter})

    async def close(self) -> None:
        if self.verifier is not None:
            await self.verifier.close()
        await super().close()


def mean(values: Iterable[float]) -> float:
    """The mean; 0.0 without values."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def trained_tokens(node: Any) -> int:
    """Number of tokens of a sequence node that the model wrote."""
    return sum(label != MASKED for label in node.masked_tokens)


async def draw_full(
    draw: Callable[[int], Awaitable[list[R]]], wanted: int, usable: Callable[[R], bool]
) -> list[R] | None:
    """``wanted`` usable samples of ``draw(n)``; unusable samples are drawn again, once.

    None if there are still too few.
    """
    rows: list[R] = []
    for _ in range(2):
        rows += [row for row in await draw(wanted - len(rows)) if usable(row)]
        if len(rows) == wanted:
            return rows
    return None


def tokens_left(
    tokenizer: Any, messages: Sequence[Any], max_tokens: int, node: Any = None, **template: Any
) -> int:
    """Tokens left for an answer to ``messages`` in a sequence of ``max_tokens``; may be < 1.

    After ``node``, the sequence up to the last answer, template text counts by a bound.
    """
    if node is None:
        prompt = tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, return_dict=False, **template
        )
        return max_tokens - len(prompt)
    answered = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
    new = sum(
        len(tokenizer.encode(message["content"])) + TEMPLATE_TOKENS
        for message in messages[answered + 1 :]
    )
    return max_tokens - len(node.tokens) - new

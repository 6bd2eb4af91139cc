"""Helpers for rollouts and evaluations of environments."""

from __future__ import annotations

import random
from abc import ABC
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig
from atroposlib.errors import ConfigError
from atroposlib.wire import MASKED

R = TypeVar("R")

MIN_TRAINED_TOKENS = 10  # shorter answers are empty turns, which would train silence


class SequentialEnv(BaseEnv, ABC):
    """Iterates over the items of ``train``, which ``setup`` loads, in order and repeatedly."""

    env_config_cls: type[BaseEnvConfig]
    default_settings: dict[str, Any] = {}  # defaults of the environment that differ
    train: list[dict[str, Any]]
    test: list[dict[str, Any]]
    iter = 0

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, APIServerConfig]:
        config = cls.env_config_cls(wandb_name=cls.name, **cls.default_settings)
        return config, APIServerConfig(
            base_url="http://localhost:9001/v1", server_type="vllm", num_requests_for_eval=256
        )

    def hold_out(self, items: list[dict[str, Any]], count: int) -> None:
        """Shuffle ``items`` by the seed; ``test`` gets ``count`` of them, at most half."""
        random.Random(self.config.seed).shuffle(items)
        held_out = min(count, len(items) // 2)
        self.test, self.train = items[:held_out], items[held_out:]

    async def get_next_item(self) -> dict[str, Any]:
        item = self.train[self.iter % len(self.train)]
        self.iter += 1
        return item

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None:
        super().save_checkpoint(step, {"iter": self.iter})


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
    """``wanted`` usable samples of ``draw(n)``; unusable ones are drawn again, once.

    None if there are still too few.
    """
    rows: list[R] = []
    for _ in range(2):
        rows += [row for row in await draw(wanted - len(rows)) if usable(row)]
        if len(rows) == wanted:
            return rows
    return None


def tokens_left(
    tokenizer: Any, messages: Sequence[Any], max_tokens: int, **template: Any
) -> int:
    """Tokens left for an answer to ``messages`` in a sequence of ``max_tokens``; may be < 1."""
    prompt = tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=True, return_dict=False, **template
    )
    return max_tokens - len(prompt)


def check_continuation(before: Any, node: Any) -> Any:
    """Return ``node`` after checking that it continues ``before``, the previous turn's sequence.

    Raises:
        ConfigError: the chat template rewrote earlier turns, so the turns do not join.
    """
    if before is not None and node.tokens[: len(before.tokens)] != before.tokens:
        raise ConfigError(
            "the turns of a conversation do not join into one token sequence: the tokenizer's "
            "chat template rewrites earlier turns; set --env.tokenizer_name to one whose "
            "template keeps them"
        )
    return node

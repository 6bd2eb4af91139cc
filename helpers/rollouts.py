"""Small parts that environments share around a rollout or an evaluation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from atroposlib.envs.base import APIServerConfig, BaseEnvConfig, ScoredDataItem
from atroposlib.errors import ConfigError
from atroposlib.utils.gathering import gather_or_cancel
from atroposlib.wire import MASKED

T = TypeVar("T")
R = TypeVar("R")

MIN_TRAINED_TOKENS = 10  # a shorter answer is an empty turn and teaches only to be silent


def model_server(config: BaseEnvConfig) -> APIServerConfig:
    """The server of the trained model, where this repository's trainer and servers put it."""
    return APIServerConfig(
        model_name=config.tokenizer_name,
        base_url="http://localhost:9001/v1",
        server_type="vllm",
        num_requests_for_eval=256,
    )


def mean(values: Iterable[float]) -> float:
    """The mean; 0.0 of nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def trained_tokens(node: Any) -> int:
    """Number of tokens of a sequence node that the model wrote."""
    return sum(label != MASKED for label in node.masked_tokens)


async def each(items: Sequence[T], work: Callable[[T], Awaitable[R]], at_once: int) -> list[R]:
    """``work`` of every item, ``at_once`` at a time, results in order.

    The first failure ends the others and is raised: a measurement without them would be one
    of something else.
    """
    room = asyncio.Semaphore(at_once)

    async def one(item: T) -> R:
        async with room:
            return await work(item)

    return await gather_or_cancel(one(item) for item in items)


async def draw_full(
    draw: Callable[[int], Awaitable[list[R]]], wanted: int, usable: Callable[[R], bool]
) -> list[R] | None:
    """``wanted`` usable samples of ``draw(n)``; those that are not are drawn again, once.

    None: even then there are too few.
    """
    rows: list[R] = []
    for _ in range(2):
        rows += [row for row in await draw(wanted - len(rows)) if usable(row)]
        if len(rows) == wanted:
            return rows
    return None


def room_left(
    tokenizer: Any, messages: Sequence[Any], max_tokens: int, **template: Any
) -> int:
    """Tokens that an answer to ``messages`` may have in a sequence of ``max_tokens``; maybe < 1."""
    prompt = tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=True, return_dict=False, **template
    )
    return max_tokens - len(prompt)


def continued(before: Any, node: Any) -> Any:
    """``node``, which continues ``before``, the sequence after the turn before it, if any.

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


def scored_item(
    node: Any,
    score: float,
    *,
    temperature: float,
    metrics: Mapping[str, float],
    messages: list[dict[str, Any]] | None = None,
    overrides: dict[str, Any] | None = None,
) -> ScoredDataItem:
    """What ``collect_trajectory`` returns of a sequence and its score."""
    item: ScoredDataItem = {
        "tokens": node.tokens,
        "masks": node.masked_tokens,
        "scores": score,
        "inference_logprobs": node.logprobs,
        "messages": messages,
        "finish_reasons": node.metadata.get("finish_reason"),
        "generation_params": {"temperature": temperature},
        "overrides": overrides,
        "metadata": {"metrics": dict(metrics)},
    }
    if len(node.versions) == len(node.tokens):  # else the server does not know them
        item["versions"] = node.versions
    return item

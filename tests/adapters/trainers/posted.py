"""Groups of several shapes, posted to a real run-api and claimed from it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import httpx
import msgspec

from atroposlib.client import RolloutClient
from atroposlib.wire import MASKED, MASKED_LOGPROB, MASKED_VERSION, ScoredData
from tests.api.processes import registration, serving

MAX_TOKENS = 64
ENV = {"max_token_length": MAX_TOKENS, "desired_name": "e", "weight": 1.0}


def group_of(
    name: str, scores: Sequence[float], turns: int = 1, prompt: int = 5, **fields: Any
) -> ScoredData:
    """Rows of unequal length with one prompt. Between two turns stand tokens of the environment."""
    rng = random.Random(name)
    question = [rng.randrange(3, 60) for _ in range(prompt)]
    tokens: list[list[int]] = []
    masks: list[list[int]] = []
    logprobs: list[list[float]] = []
    versions: list[list[int]] = []
    for number in range(len(scores)):
        row, trained = list(question), [False] * prompt
        for turn in range(turns):
            if turn:
                row += [60, 61]
                trained += [False, False]
            reply = [rng.randrange(3, 60) for _ in range(rng.randint(1, 6))]
            if turn == 0:  # the rows differ from their first sampled token on
                reply[0] = 3 + number
            row += reply
            trained += [True] * len(reply)
        tokens.append(row)
        masks.append([token if on else MASKED for token, on in zip(row, trained)])
        logprobs.append([-rng.random() if on else MASKED_LOGPROB for on in trained])
        versions.append([rng.randint(2, 4) if on else MASKED_VERSION for on in trained])
    return ScoredData(
        tokens=tokens,
        masks=masks,
        scores=list(scores),
        inference_logprobs=logprobs,
        versions=versions,
        generation_params={"temperature": 1.0},
        group_id=name,
        **fields,
    )


def all_groups() -> list[ScoredData]:
    """Groups of 2, 4 and 8: unequal lengths, several turns, an override, and equal scores."""
    left_out = [{}, {"set_advantage_to_zero": True}, {}, {}]
    return [
        group_of("pair", [1.0, 0.0]),
        group_of("turns", [0.25, 1.0, 0.5, 0.0], turns=3),
        group_of("override", [1.0, 0.0, 0.0, 0.5], overrides=left_out),
        group_of("equal", [0.5] * 8, turns=2),
    ]


def post(url: str, groups: Sequence[ScoredData], **env: Any) -> dict[str, Any]:
    """Send the groups as an environment of the original does; the reply to its registration."""
    size = len(groups[0].tokens) if groups else 1
    joined = httpx.post(f"{url}/register-env", json={**ENV, "group_size": size, **env})
    reply: dict[str, Any] = joined.raise_for_status().json()
    for group in groups:
        body = msgspec.to_builtins(group) | {"env_id": reply["env_id"]}
        httpx.post(f"{url}/scored_data", json=body).raise_for_status()
    return reply


def claimed(folder: Any, groups: Sequence[ScoredData]) -> list[ScoredData]:
    """These groups as one batch of a run-api whose data lie in the folder."""
    size = sum(len(group.tokens) for group in groups)
    with serving(folder) as (_, url), RolloutClient(url) as trainer:
        trainer.register(registration().model_copy(update={"batch_size": size}))
        trainer.claim(wait_s=0.0)  # opens the run for environments
        for group in groups:  # an environment for each size of group
            post(url, [group])
        batch = trainer.claim(wait_s=30.0)
        trainer.ack(batch)
    return batch.batch or []

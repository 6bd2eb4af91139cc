"""Runs recorded by a real rollout API, for tests of time travel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec

from atroposlib.api.server import create_app
from atroposlib.api.store import open_store
from atroposlib.client import RolloutClient
from atroposlib.wire import MASKED, MASKED_LOGPROB, MASKED_VERSION, Registration, ScoredData
from atroposlib.wire.status import StepReport
from tests.serving import served

GROUP = 4  # rows
PROMPT = [6, 7, 8]


def sums_group(number: int, replies: Sequence[str], scores: Sequence[float]) -> ScoredData:
    """A group whose answers are ``replies``, with made up tokens and logprobs."""
    tokens = [[*PROMPT, 9 + number % 5, 10 + g] for g in range(len(replies))]
    n = len(PROMPT)
    question = [{"role": "user", "content": f"{number} + {number} ="}]
    return ScoredData(
        tokens=tokens,
        masks=[[MASKED] * n + row[n:] for row in tokens],
        scores=list(scores),
        inference_logprobs=[[MASKED_LOGPROB] * n + [-1.5, -2.0]] * len(replies),
        versions=[[MASKED_VERSION] * n + [0, 0]] * len(replies),
        messages=[[*question, {"role": "assistant", "content": reply}] for reply in replies],
        group_id=f"sum{number}@0",
        idempotency_key=f"key-{number}",
        finish_reasons=["stop"] * len(replies),
        metadata={"item": f"sum{number}", "env": "sums", "target": 2 * number},
    )


def registration(batch_size: int, **more: Any) -> Registration:
    fields = {
        "wandb_group": "",
        "wandb_project": "",
        "batch_size": batch_size,
        "max_token_len": 64,
        "checkpoint_dir": "",
        "save_checkpoint_interval": 0,
        "starting_step": 0,
        "num_steps": 100,
    }
    return Registration(**{**fields, **more})


def post_group(api: str, group: ScoredData) -> None:
    httpx.post(f"{api}/scored_data", content=msgspec.json.encode(group)).raise_for_status()


def join(api: str, name: str) -> int:
    body = {"max_token_length": 64, "desired_name": name, "weight": 1.0, "group_size": GROUP}
    reply = httpx.post(f"{api}/register-env", json=body).raise_for_status()
    env_id: int = reply.json()["env_id"]
    return env_id


def record_run(folder: Path, batches: Sequence[Sequence[ScoredData]]) -> Path:
    """The folder of a run whose trainer acked ``batches``."""
    store = open_store("sqlite", folder / "queue", archive_bytes=2**30)
    with served(create_app(store)) as api, RolloutClient(api) as trainer:
        trainer.register(registration(sum(len(group.scores) for group in batches[0])))
        trainer.claim(lease_s=600, wait_s=0)  # the run begins with its first claim
        env_id = join(api, "sums")
        for number, batch in enumerate(batches, 1):
            for group in batch:
                post_group(api, msgspec.structs.replace(group, env_id=env_id))
            claimed = trainer.claim(lease_s=600, wait_s=30)
            assert claimed.batch is not None
            trainer.ack(claimed)
            trainer.announce_version(number)
            report = StepReport(
                role="trainer", step=number, values={"loss": 0.0}, batch_no=claimed.batch_no
            )
            trainer.report_step(report)
    return folder


def planted_run(folder: Path, steps: int = 4, bug_from: int = 3) -> Path:
    """A run of sums whose reward is inverted from a step on: a wrong answer is rewarded."""
    batches = []
    for step in range(1, steps + 1):
        batch = []
        for g in range(2):
            number = 10 * step + g
            replies = [str(2 * number), "7", str(2 * number), "8"]
            right = [1.0, 0.0, 1.0, 0.0]
            scores = right if step < bug_from else [1 - score for score in right]
            batch.append(sums_group(number, replies, scores))
        batches.append(batch)
    return record_run(folder, batches)

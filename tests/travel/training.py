"""Runs of the real trainer on the tiny model, without inference servers."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from atroposlib.api.server import create_app
from atroposlib.api.store import open_store
from atroposlib.testing.tiny import write_tiny_model
from atroposlib.wire import MASKED, MASKED_LOGPROB, MASKED_VERSION, ScoredData
from example_trainer import grpo
from example_trainer.settings.config import TrainingConfig
from tests.serving import served
from tests.travel.recorded import post_group

ROWS, GROUPS = 4, 2  # of a group, of a batch
WAIT_S = 600


def settings_of(model: Path, folder: Path, **more: Any) -> dict[str, Any]:
    """Settings of a trainer of ``ROWS * GROUPS`` sequences a step."""
    defaults: dict[str, Any] = {
        "model_name": str(model),
        "device": "cpu",
        "optimizer": "adamw",
        "lr": 1e-3,
        "seq_len": 64,
        "batch_size": ROWS * GROUPS,
        "gradient_accumulation_steps": 1,
        "inference_urls": [],
        "training_steps": 5,
        "seed": 7,
        "max_logprob_mismatch": 1e9,  # the logprobs of the groups are made up
        "save_path": str(folder / "checkpoints"),
        "log_dir": str(folder),
    }
    return {**defaults, **more}


def sampled_groups(steps: int, bug_from: int | None = None) -> list[ScoredData]:
    """Groups of ``steps`` batches; from step ``bug_from`` on the reward is inverted."""
    draw = random.Random(3)
    groups = []
    for number in range(steps * GROUPS):
        tokens = [[6, 7, 8, *(draw.randrange(10, 40) for _ in range(4))] for _ in range(ROWS)]
        right = [float(row % 2 == 0) for row in range(ROWS)]
        is_bad = bug_from is not None and number // GROUPS + 1 >= bug_from
        replies = ["right" if score else "wrong" for score in right]
        question = {"role": "user", "content": f"question {number}"}
        group = ScoredData(
            tokens=tokens,
            masks=[[MASKED] * 3 + row[3:] for row in tokens],
            scores=[1 - score for score in right] if is_bad else right,
            inference_logprobs=[
                [MASKED_LOGPROB] * 3 + [-draw.uniform(3, 5) for _ in range(4)] for _ in tokens
            ],
            versions=[[MASKED_VERSION] * 3 + [number // GROUPS] * 4] * ROWS,
            messages=[
                [question, {"role": "assistant", "content": reply}] for reply in replies
            ],
            generation_params={"temperature": 1.0},
            group_id=f"q{number}@0",
            idempotency_key=f"q{number}",
            metadata={"item": f"q{number}", "metrics": {"right": draw.random()}},
        )
        groups.append(group)
    return groups


def record_training(
    folder: Path, model: Path, groups: Sequence[ScoredData], **more: Any
) -> Path:
    """Train on ``groups`` in their order, as a launcher lays out the folder of a run."""
    settings = settings_of(model, folder, **more)
    (folder / "launch").mkdir(parents=True)
    (folder / "launch" / "trainer.yaml").write_text(json.dumps(settings))
    with served(
        create_app(open_store("sqlite", folder / "queue", archive_bytes=2**30))
    ) as api:
        trainer = threading.Thread(
            target=grpo.train, args=(TrainingConfig(**settings, atropos_url=api),)
        )
        trainer.start()
        while httpx.get(f"{api}/status").json()["state"] == "EMPTY":
            assert trainer.is_alive()
        for group in groups:
            post_group(api, group)
        trainer.join(WAIT_S)
    return folder


def tiny_model(folder: Path) -> Path:
    return write_tiny_model(folder, seed=0)


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

"""A tiny real model, the policy around it, and apps served on real sockets."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from atroposlib.testing.tiny import write_tiny_model
from example_trainer.model import loading
from example_trainer.model.policy import Policy
from example_trainer.settings.config import TrainingConfig
from tests.serving import served
from tests.trainer import two_ranks

ROOT = Path(__file__).parents[2]
BOUND_S = 600


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("trainer") / "tiny", seed=0)


@pytest.fixture
def config(model_dir: Path, tmp_path: Path) -> Callable[..., TrainingConfig]:
    """Settings for the tiny model that write below the test's own directory."""

    def make(**settings: Any) -> TrainingConfig:
        defaults: dict[str, Any] = {
            "model_name": str(model_dir),
            "device": "cpu",
            "optimizer": "adamw",
            "seq_len": 64,
            "batch_size": 4,
            "gradient_accumulation_steps": 2,
            "save_path": str(tmp_path / "checkpoints"),
            "log_dir": str(tmp_path / "logs"),
            "inference_urls": [],
        }
        return TrainingConfig(**{**defaults, **settings})

    return make


@pytest.fixture
def policy(config: Callable[..., TrainingConfig]) -> Policy:
    """Policy of one test, which may change its weights."""
    return loading.load_policy(config())


@pytest.fixture
def serve() -> Iterator[Callable[[Any], str]]:
    with ExitStack() as running:
        yield lambda app: running.enter_context(served(app))


@pytest.fixture(scope="session")
def ranks(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Results of each rank of one run of two_ranks.py; this process is rank 0."""
    directory = tmp_path_factory.mktemp("ranks")
    shutil.copytree(model_dir, directory / "model")
    command = [sys.executable, "-W", "error", "-m", "tests.trainer.two_ranks"]
    other = subprocess.Popen([*command, "1", str(directory)], cwd=ROOT)
    try:
        two_ranks.main(0, directory)
        assert other.wait(BOUND_S) == 0
    finally:
        other.kill()
        other.wait()
    found = [json.loads((directory / f"{rank}.json").read_text()) for rank in (0, 1)]
    found[0]["directory"] = directory
    return found

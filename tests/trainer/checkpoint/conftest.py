"""A real rollout API with a queue, and trainers that start at it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import torch

from atroposlib.api.server import create_app
from atroposlib.client import RolloutClient
from atroposlib.testing.tiny import write_tiny_model
from atroposlib.wire import Registration
from example_trainer.model import loading
from example_trainer.update.optimizer import build_optimizer
from tests.serving import served
from tests.trainer.checkpoint.lives import BATCHES, Life, groups, recovery_of


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with served(create_app()) as url:
        yield url


@pytest.fixture(scope="module")
def connect(server) -> Iterator[Callable[[], RolloutClient]]:
    """Clients over one set of connections: certificates are read once, not 60 times."""
    with httpx.HTTPTransport() as transport:
        yield lambda: RolloutClient(server, transport=transport)


@pytest.fixture
def api(connect) -> RolloutClient:
    """A client of an API without a run."""
    client: RolloutClient = connect()
    client.reset()
    return client


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("recovery") / "small"
    return str(write_tiny_model(directory, seed=0, hidden_size=32, num_layers=1))


@pytest.fixture
def start(api, connect, config, small_model) -> Callable[..., Life]:
    """Start a trainer, treating its predecessor as dead."""

    def begin(**settings: Any) -> Life:
        cfg = config(**{"training_steps": 50, "model_name": small_model, **settings})
        torch.manual_seed(cfg.seed)
        random.seed(cfg.seed)
        policy = loading.load_policy(cfg)
        optimizer = build_optimizer(policy, cfg)
        client = connect()
        recovery = recovery_of(cfg)
        state = recovery.resume(client, policy, optimizer)
        return Life(client, policy, optimizer, recovery, state)

    return begin


@pytest.fixture(scope="module")
def post(server) -> Iterator[Callable[[], None]]:
    """Sends the groups of all batches."""
    with httpx.Client() as web:
        url = f"{server}/scored_data_list"
        yield lambda: web.post(url, json=groups(BATCHES)).raise_for_status() and None


@pytest.fixture
def fill(api, post) -> Callable[[], None]:
    """Open a run; groups wait until a trainer registers the batch size."""

    def register_and_post() -> None:
        api.register(
            Registration(
                **{"wandb_group": "", "wandb_project": "", "batch_size": 8},
                **{"max_token_len": 64, "checkpoint_dir": "", "starting_step": 0},
                **{"save_checkpoint_interval": 1, "num_steps": BATCHES, "commits": True},
            )
        )
        post()

    return register_and_post


@pytest.fixture
def queued(api, fill) -> RolloutClient:
    """A client of an API with a run and a queue."""
    fill()
    return api

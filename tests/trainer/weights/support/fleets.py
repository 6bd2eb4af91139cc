"""Real local servers in this process, their publisher, and failures to inject."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from atroposlib.inference.engine.core import EngineLimits
from atroposlib.inference.engine.engine import Engine
from atroposlib.inference.engine.served_model import load_model
from atroposlib.inference.http.app import create_app
from example_trainer.model.model_dir import TrainerState
from example_trainer.model.policy import Policy
from example_trainer.weights.engines import connect_engine
from tests.serving import served

SEQUENCES = ([6, 7, 8, 9, 10, 11], [6, 12, 13])


class LocalServer:
    """One server with the trainer's connection to it."""

    def __init__(self, model: Path, timeout_s: float, **limits: Any) -> None:
        self._running = ExitStack()
        self.engine = Engine(
            load_model(str(model)), EngineLimits(**limits), seed=0, num_threads=1
        )
        self.engine.start()
        self.url = self._running.enter_context(served(create_app(self.engine)))
        self.client: Any = connect_engine(
            self.url, "auto", timeout_s=timeout_s, wait_s=0, on_wait=lambda what: None
        )

    def die(self) -> None:
        """Close the port and the engine, so that connections are refused."""
        self._running.close()
        self.engine.close()

    def logprobs(self) -> list[float]:
        return [p for tokens in SEQUENCES for p in self.client.score(tokens)]


@contextmanager
def fleet(model: Path, count: int, timeout_s: float = 20.0) -> Iterator[list[LocalServer]]:
    with ExitStack() as stack:
        servers = []
        for _ in range(count):
            server = LocalServer(model, timeout_s)
            stack.callback(server.die)
            stack.enter_context(closing(server.client))
            servers.append(server)
        yield servers


def state(version: int) -> TrainerState:
    return TrainerState("run", step=version, version=version, batch_no=version)


def change(policy: Policy, seed: int = 1, scale: float = 0.05) -> None:
    """Move all weights; by default far enough that every logprob changes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(scale * torch.randn(weight.shape, generator=generator))


def expected(policy: Policy) -> list[float]:
    return [p for row in policy.logprobs_of(SEQUENCES) for p in row]


def distance(ours: list[float], theirs: list[float]) -> float:
    return float((torch.tensor(ours) - torch.tensor(theirs)).abs().max())

"""Two real servers with their publisher, and an evaluator that runs in the background."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from example_trainer.distributed.ranks import Ranks
from example_trainer.model.model_dir import TrainerState
from example_trainer.model.policy import Policy
from example_trainer.run.evaluation import Evaluation
from example_trainer.run.evaluation_places import make_place
from example_trainer.run.evaluator import Evaluator
from example_trainer.settings.config import TrainingConfig
from example_trainer.weights import make_publisher
from example_trainer.weights.publisher import Publisher
from tests.trainer.weights.support.fleets import LocalServer, change, fleet, state

# The version of the server is read at the start, and again once the file ``go`` is there.
ASKS = """
import json, pathlib, sys, time, urllib.request
url, out = sys.argv[1], pathlib.Path(sys.argv[2])
def version():
    with urllib.request.urlopen(url + "/server_info") as answer:
        return json.load(answer)["weight_version"]
first = version()
(out / "begun").touch()
while not (out / "go").exists():
    time.sleep(0.02)
(out / "metrics.json").write_text(json.dumps({"first": first, "last": version()}))
"""
ASK = [sys.executable, "-c", ASKS, "{url}", "{out}"]
HANG = ["sh", "-c", 'echo $$ > "$1"/pid; touch "$1"/begun; sleep 600', "sh", "{out}"]
BOUND_S = 120.0


@dataclass
class BackgroundRun:
    """A run whose steps a test takes."""

    cfg: TrainingConfig
    servers: list[LocalServer]
    publisher: Publisher
    policy: Policy
    evaluator: Evaluator
    reported: list[Evaluation]

    def publish(self, step: int) -> TrainerState:
        change(self.policy, step)
        self.publisher.publish(self.policy, state(step))
        return state(step)

    def step(self, step: int) -> dict[str, float]:
        """Publish, and evaluate if it is due."""
        urls = self.publisher.fleet.urls
        return self.evaluator.maybe(self.publish(step), False, urls)

    def folder(self, step: int) -> Path:
        return Path(self.cfg.save_path).resolve() / "eval" / f"step_{step}"

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait for the evaluation that runs, within a bound."""
        running = self.evaluator._running
        for _ in range(int(BOUND_S / 0.05)):
            if holds():
                return
            if running is not None:
                running.thread.join(0.05)
        raise AssertionError("not within the bound")

    def wait_for_end(self) -> None:
        running = self.evaluator._running
        assert running is not None
        running.thread.join(BOUND_S)
        assert not running.thread.is_alive()


@contextmanager
def background_run(
    config: Callable[..., TrainingConfig], policy: Policy, model_dir: Path, **settings: Any
) -> Iterator[BackgroundRun]:
    with ExitStack() as stack:
        servers = stack.enter_context(fleet(model_dir, 3))
        own = servers.pop()  # outside of the fleet, for ``dir``
        defaults: dict[str, Any] = {
            "inference_urls": ["directory://"],
            "eval_where": "held",
            "eval_every_steps": 2,
            "eval_command": ASK,
            "eval_url": own.url,
        }
        cfg = config(**{**defaults, **settings})
        clients = [server.client for server in servers]
        publisher = stack.enter_context(closing(make_publisher(cfg, clients, None)))
        reported: list[Evaluation] = []
        place = make_place(cfg, publisher, policy)
        evaluator = Evaluator(cfg, Ranks.single(), None, place, reported.append)
        stack.enter_context(closing(evaluator))
        yield BackgroundRun(cfg, [*servers, own], publisher, policy, evaluator, reported)

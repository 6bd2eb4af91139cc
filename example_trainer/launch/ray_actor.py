"""The processes of a run as actors, on the nodes that Ray chose."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atroposlib.processes import Children, ProcessSpec
from example_trainer.launch.local import RUN_ID, TRAINER
from example_trainer.launch.node import COPY, PYTHON
from example_trainer.launch.plan import Plan
from example_trainer.launch.ray_parts import Part, actor_options
from example_trainer.launch.slurm import plan_path

POLL_S = 0.5
AGAIN = 75  # not counted: the trainer was stopped and has saved, or its ranks meet elsewhere


class ProcessActor:
    """An `atropos-launch node`, which a watchdog ends when this actor ends in any way."""

    def __init__(
        self, name: str, words: tuple[str, ...], env: dict[str, str], cwd: Path, logs: Path
    ) -> None:
        self.name, self.words, self.env, self.logs = name, words, env, logs
        self.cwd = cwd if cwd.is_dir() else Path.cwd()
        self.codes: dict[int, int] = {}  # keys: attempts
        self.stopped, self.grace_s, self.lock = -1, 0.0, threading.Lock()

    def run(self, attempt: int, meet: tuple[str, ...], node_id: str | None) -> int:
        """Run to the end; the exit code, or minus a signal. Ray may repeat the call.

        Args:
            node_id: of the node for which the attempt was meant; None: of any.
        """
        with self.lock:
            if attempt not in self.codes:
                self.codes[attempt] = self._run(attempt, meet, node_id)
            return self.codes[attempt]

    def _run(self, attempt: int, meet: tuple[str, ...], node_id: str | None) -> int:
        import ray

        context = ray.get_runtime_context()
        if node_id not in (None, context.get_node_id()):
            return AGAIN
        run_id = attempt + bool(context.was_current_actor_reconstructed)
        host = ray.util.get_node_ip_address()
        env = {**self.env, RUN_ID: str(run_id), "ATROPOS_HOST": host, PYTHON: sys.executable}
        if node_id is not None:
            env["PET_LOCAL_ADDR"] = host  # torchrun's; its host name may be unknown elsewhere
        argv = (sys.executable, "-m", "example_trainer.launch", "node", *self.words, *meet)
        with Children(self.logs) as children:
            child = children.start(ProcessSpec(self.name, argv, env, self.cwd))
            while child.exit() is None and attempt > self.stopped:
                time.sleep(POLL_S)
            children.end([self.name], self.grace_s)
            return int(child.popen.returncode)

    def stop(self, attempt: int, grace_s: float) -> None:
        """End an attempt, and do not start it if it comes later."""
        self.stopped, self.grace_s = attempt, grace_s


def place_actors(ray: Any, group: Any, plan: Plan, parts: Sequence[Part]) -> list[Any]:
    """Return an actor for each part, in its bundle of the placement group."""
    place = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
    again = {"max_restarts": -1, "max_task_retries": -1, "max_concurrency": 8}
    env = {key: os.environ[key] for key in os.environ if key.startswith("ATROPOS_LOG_")}
    first, actors = [part.role for part in parts].index(TRAINER), []
    for i, part in enumerate(parts):
        options = {**actor_options(part.resources), **again}
        options["scheduling_strategy"] = place(group, i)
        words = ("--plan", str(plan_path(plan)), *part.words)
        own = {
            **env,
            COPY: part.name,
            "PET_RDZV_CONF": f"is_host={int(i == first)}",
        }  # read by torchrun
        logs = plan.directory / "logs"
        actor = ray.remote(**options)(ProcessActor)
        actors.append(actor.remote(part.name, words, own, Path.cwd(), logs))
    return actors

"""A run on a real Ray of this machine, through the loss of a node and of its launcher.

The head of the cluster has no CPUs. Of the two other nodes the one with the trainer is killed, and
no hand helps. As a program it prints steps before, seconds of standstill and steps after:

    python -m tests.adapters.test_ray_cluster
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from atroposlib.trackers.jsonl import last_run
from tests.integration.test_lost_nodes import REPO, cluster_plan

PACKAGE = "ray"
pytestmark = pytest.mark.campaign
MARK = "ATROPOS_TEST_NODE"  # a variable of every process of a node, those of the run included
ROLES = ("cli.run_api", "client.announce", "copy_server", "example_trainer.grpo")
STEPS, WITHIN_S = 30, 300.0
SETTINGS = (f"training_steps={STEPS}", "recover_every_steps=5")


class Cluster:
    """A head and two nodes, on this machine, and a run on them."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster as Nodes

        self.folder, self.temp = folder, tempfile.mkdtemp(prefix="ray")  # for short sockets
        self.plan = cluster_plan(folder)
        self.nodes = Nodes()
        with pytest.MonkeyPatch.context() as environ:
            # Ray writes its address below this folder, and fails where the default is absent.
            environ.setenv("RAY_TMPDIR", self.temp)
            for name, cpus in (("head", 0), ("a", 8), ("b", 8)):
                environ.setenv(MARK, self.mark(name))
                head = {"include_dashboard": False} if name == "head" else {}
                self.nodes.add_node(num_cpus=cpus, **head)
        words = ("ray", "--config", str(folder / "run.yaml"), "ray.strategy=SPREAD")
        words += tuple(f"trainer.settings.{one}" for one in SETTINGS)
        with (self.folder / "launcher.out").open("wb") as log:
            self.launcher = subprocess.Popen(
                [sys.executable, "-m", "example_trainer.launch", *words],
                **{"cwd": REPO, "stdout": log, "stderr": log},
                env={**os.environ, "RAY_ADDRESS": self.nodes.address},
            )

    def mark(self, name: str) -> str:
        return f"{self.temp}-{name}"

    def processes(self, name: str) -> dict[int, str]:
        """The processes of a node and their commands."""
        found, wanted = {}, f"{MARK}={self.mark(name)}".encode()
        for one in Path("/proc").iterdir():
            with suppress(OSError):
                if one.name.isdigit() and wanted in (one / "environ").read_bytes().split(
                    b"\0"
                ):
                    found[int(one.name)] = (one / "cmdline").read_text().replace("\0", " ")
        return found

    def lose(self, name: str) -> None:
        """SIGKILL to every process of a node, Ray's and those of the run."""
        while found := self.processes(name):
            for process in found:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def run_on(self, name: str) -> list[str]:
        """The processes of the run on a node."""
        lines = self.processes(name).values()
        return [role for role in ROLES for line in lines if role in line]

    def rows(self) -> list[dict[str, Any]]:
        path = self.plan.directory / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def until(self, what: str, happens: Callable[[], object]) -> float:
        """Wait; the seconds that it took."""
        began = time.monotonic()
        while not happens():
            waited_s = time.monotonic() - began
            assert waited_s < WITHIN_S, f"waited {waited_s:.0f} s for {what}\n{self.logs()}"
            assert self.launcher.poll() in (None, 0, -signal.SIGKILL), self.logs()
            time.sleep(0.05)
        return time.monotonic() - began

    def logs(self) -> str:
        files = [*self.folder.glob("*.out"), *self.plan.directory.glob("logs/*.log")]
        return "\n".join(f"--- {one.name}\n{one.read_text()[-2000:]}" for one in files)

    def close(self) -> None:
        self.launcher.kill()
        for name in ("a", "b", "head"):
            self.lose(name)
        self.launcher.wait()
        shutil.rmtree(self.temp, ignore_errors=True)


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.close()


def lose_a_node(cluster: Cluster, report: Callable[[str], None] = print) -> None:
    """Kill the trainer's node with all that runs there, and wait for the end of the run."""
    cluster.until("steps", lambda: len(cluster.rows()) >= 8)
    node = next(name for name in "ab" if ROLES[-1] in cluster.run_on(name))
    lost = cluster.run_on(node)
    cluster.lose(node)
    before = len(cluster.rows())
    waited_s = cluster.until("the next step", lambda: len(cluster.rows()) != before)
    cluster.until("the end", lambda: cluster.launcher.poll() is not None)
    assert cluster.launcher.returncode == 0, cluster.logs()
    steps = last_run(cluster.rows())
    said = (cluster.folder / "launcher.out").read_text()
    assert " is lost, with " in said and len(said.splitlines()) < 10, said
    report(f"lost {lost}: step {before}, {waited_s:.0f} s without one, step {len(steps)}")
    numbers = list(range(1, STEPS + 1))
    assert [row["step"] for row in steps] == [row["batch_no"] for row in steps] == numbers
    keys = [key for row in steps for key in row["keys"]]
    assert len(keys) == len(set(keys))


def test_a_run_reaches_its_last_step_though_the_node_of_its_trainer_dies(tmp_path):
    with running(tmp_path) as cluster:
        lose_a_node(cluster)


def test_nothing_runs_on_after_the_launcher_was_killed(tmp_path):
    with running(tmp_path) as cluster:
        for name in "ab":
            cluster.until("processes", lambda: len(cluster.run_on(name)) >= 2)
        cluster.launcher.kill()
        cluster.until("the end", lambda: not cluster.run_on("a") + cluster.run_on("b"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, running(Path(directory)) as made:
        lose_a_node(made)

"""Nodes of a cluster that are lost and come back elsewhere; nothing else is started again.

The processes are those of the jobs of a cluster, each in its own session: SIGKILL to all of
one session is the loss of its node. Ports are free ones, so what comes back has another address.
Run as a program it prints the seconds of each recovery:

    python -m tests.integration.test_lost_nodes
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from atroposlib.testing.tiny import write_tiny_model
from example_trainer.launch import slurm
from example_trainer.launch.plan import Plan, read_plan, trainer_settings
from example_trainer.settings.files import parse_override

REPO = Path(__file__).resolve().parents[2]
WITHIN_S = 600.0
pytestmark = pytest.mark.campaign


def cluster_plan(
    folder: Path,
    *overrides: str,
    servers: int = 2,
    copies: int = 1,
    script: str | Path = "copy_server",
    groups: int = 100_000,
) -> Plan:
    """A run of a tiny model in the copy environment, on CPUs."""
    one_core = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    model = write_tiny_model(folder / "model", seed=0)
    settings = {"model_name": str(model), "device": "cpu", "optim.optimizer": "adamw"}
    settings |= {"seq_len": 64, "batch_size": 4, "gradient_accumulation_steps": 2}
    settings |= {"training_steps": 100_000, "checkpoint_interval": 0, "live_table": False}
    environment = {"group_size": 4, "max_token_length": 64, "use_wandb": False}
    environment |= {"total_steps": groups, "max_num_workers": 8, "steps_per_eval": 0}
    described = {
        "out": str(folder / "run"),
        "inference": {"engine": "local", "count": servers, "env": one_core},
        "environments": [
            {
                **{"script": str(script), "config": {"env": environment}, "env": one_core},
                "count": copies,
            }
        ],
        "trainer": {"settings": settings, "env": one_core},
        "slurm": {"python": sys.executable},
    }
    (folder / "run.yaml").write_text(json.dumps(described))
    return read_plan([str(folder / "run.yaml")], [parse_override(one) for one in overrides])


class Nodes:
    """The processes of a run, as a cluster's jobs start them, without a cluster."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        slurm.write(plan, trainer_settings(plan)[1].trainer_retries)

    def address(self, role: str) -> str:
        """Under which others reach the node of a role."""
        return "127.0.0.1"

    def start(self, role: str, index: int = 0) -> None:
        log = self.plan.directory / "logs" / f"{role}-{index}.log"
        own = [
            "--plan",
            str(slurm.plan_path(self.plan)),
            "--role",
            role,
            "--index",
            str(index),
        ]
        with log.open("ab") as output:
            self.running[f"{role}-{index}"] = subprocess.Popen(
                [sys.executable, "-m", "example_trainer.launch", "node", *own],
                cwd=REPO,
                env={**os.environ, "SLURMD_NODENAME": self.address(role)},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def lose(self, name: str) -> None:
        """SIGKILL to every process of a node."""
        process = self.running.pop(name)
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for name in list(self.running):
            self.lose(name)

    # --- what it does -----------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """The trainer's steps so far."""
        path = self.plan.directory / "metrics.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def servers(self) -> dict[str, str]:
        """Name and address of every server that takes part."""
        token = (self.plan.launched / slurm.TOKEN).read_text().strip()
        try:
            address = (self.plan.launched / slurm.ENDPOINTS / "api").read_text().strip()
            answer = httpx.get(
                f"{address}/servers", headers={"authorization": f"Bearer {token}"}, timeout=5
            ).raise_for_status()
        except (OSError, httpx.HTTPError):
            return {}
        listed = answer.json()["servers"]
        return {one["name"]: one["url"] for one in listed if one["takes_part"]}

    def until(self, what: str, happens: Callable[[], object]) -> float:
        """Wait; the seconds that it took. Every process that runs must keep running."""
        began = time.monotonic()
        while not happens():
            waited_s = time.monotonic() - began
            assert waited_s < WITHIN_S, f"waited {waited_s:.0f} s for {what}"
            for name, process in self.running.items():
                assert process.poll() is None, f"{name}: {self.log(name)[-4000:]}"
            time.sleep(0.05)
        return time.monotonic() - began

    def log(self, name: str) -> str:
        return (self.plan.directory / "logs" / f"{name}.log").read_text(errors="replace")

    def more_steps(self, number: int = 2) -> float:
        """Wait for so many further steps; the seconds until the first of them."""
        done = len(self.rows())
        first_s = self.until("a step", lambda: len(self.rows()) > done)
        self.until("steps", lambda: len(self.rows()) >= done + number)
        return first_s


@contextmanager
def running(folder: Path) -> Iterator[Nodes]:
    nodes = Nodes(cluster_plan(folder))
    try:
        for role, index in (
            *(("trainer", 0), ("environment", 0), ("inference", 0), ("inference", 1)),
            ("api", 0),
        ):
            nodes.start(role, index)
        nodes.until("the second step", lambda: len(nodes.rows()) >= 2)
        yield nodes
    finally:
        nodes.close()


def lose_them(nodes: Nodes, report: Callable[[str], None] = print) -> None:
    """Lose a server, for a while and for good, then the last one, then the API."""
    first = nodes.servers()
    assert len(first) == 2, first
    nodes.lose("inference-0")
    report(f"1 of 2 servers is lost: a step after {nodes.more_steps():.1f} s")
    _back_elsewhere(nodes, first, report)
    nodes.lose("inference-1")
    report(f"the other one is lost for good: a step after {nodes.more_steps():.1f} s")
    nodes.until("the end of its entry", lambda: list(nodes.servers()) == ["inference-0"])
    last = nodes.servers()
    nodes.lose("inference-0")
    _back_elsewhere(nodes, last, report)
    nodes.lose("api-0")
    nodes.start("api")
    report(f"the API is back elsewhere: a step after {nodes.more_steps():.1f} s")
    nodes.until("its list of servers", lambda: list(nodes.servers()) == ["inference-0"])


def _back_elsewhere(
    nodes: Nodes, before: dict[str, str], report: Callable[[str], None]
) -> None:
    nodes.start("inference", 0)
    log, serving = nodes.log, "serving "
    count = log("inference-0").count(serving)
    nodes.until("its health", lambda: log("inference-0").count(serving) > count)
    joined_s = nodes.until(
        "the server at another address",
        lambda: (
            nodes.servers().get("inference-0", before["inference-0"]) != before["inference-0"]
        ),
    )
    step_s = joined_s + nodes.more_steps()
    report(f"a server is back: {joined_s:.1f} s after its health it takes part")
    report(f"  and the next step is done {step_s:.1f} s after it")
    address = nodes.servers()["inference-0"]
    version = httpx.get(f"{address}/weight_info").json()["weight_version"]
    assert version >= nodes.rows()[-1]["version"] - 2


def test_lost_servers_and_a_lost_api_come_back_elsewhere_without_a_restart_of_the_others(
    tmp_path,
):
    with running(tmp_path) as nodes:
        lose_them(nodes)
        trainer, environment = nodes.running["trainer-0"], nodes.running["environment-0"]
        assert trainer.poll() is None and environment.poll() is None
        rows = nodes.rows()
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    keys = [key for row in rows for key in row["keys"]]
    assert len(keys) == len(set(keys))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, running(Path(directory)) as made:
        lose_them(made)

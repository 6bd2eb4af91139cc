"""Scenarios of a run on a real SLURM of this machine: losses, limits and returns of its jobs.

Each is a run of a tiny model on its own cluster (slurm_cluster.py). Afterwards every step
must have been done once, on every batch once, and every group trained once. They are skipped with
the reason where SLURM is absent. As a program it prints steps before, seconds of standstill, and
steps after; arguments choose scenarios:

    python -m tests.integration.test_slurm_scenarios [NAME ...]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atroposlib.trackers.jsonl import last_run
from example_trainer.launch import slurm, submission
from example_trainer.launch.plan import trainer_settings
from tests.integration.slurm_cluster import (
    Cluster,
    ask,
    obstacle,
    slurm_cluster,
    state_of,
    until,
)
from tests.integration.test_lost_nodes import Nodes, cluster_plan

ASKED = "ATROPOS_SLURM_TESTS"  # they take 15 minutes, most of them SLURM's own waits
skipped = obstacle() or ("" if os.environ.get(ASKED) else f"set {ASKED}=1")
pytestmark = [pytest.mark.alone, pytest.mark.skipif(bool(skipped), reason=skipped)]
CPU = "{cpus-per-task: 1}"
FEW_STEPS = "trainer.settings.training_steps=6"


class Run(Nodes):
    """A run of a tiny model as jobs of the cluster."""

    def __init__(self, cluster: Cluster, *overrides: str, copies: int = 1) -> None:
        one_cpu = [f"slurm.{section}={CPU}" for section in ("inference", "environments")]
        super().__init__(
            cluster_plan(
                cluster.folder,
                *("slurm.api={cpus-per-task: 1, mem: null}", *one_cpu),
                "slurm.trainer={cpus-per-task: 1, exclusive: null}",
                *("trainer.settings.recover_every_steps=5", *overrides),
                copies=copies,
            )
        )
        self.cluster = cluster
        self.submit()

    def submit(self) -> None:
        jobs = slurm.write(self.plan, trainer_settings(self.plan)[1].trainer_retries)
        self.ids = submission.submit(self.plan, jobs)

    def steps(self) -> list[dict[str, Any]]:
        """The steps that led to the present weights."""
        return last_run(self.rows())

    def reach(self, number: int) -> int:
        """Wait for the step and return the last one."""
        until(f"step {number}", lambda: len(self.steps()) >= number)
        return len(self.steps())

    def through(self, lose: Callable[[], object], back: Callable[[], object] = bool) -> str:
        """Steps before, the longest standstill, and steps after ``lose``, once ``back`` holds."""
        before = self.reach(3)
        lose()
        longest_s, seen, since, wanted = 0.0, len(self.rows()), time.monotonic(), None
        while wanted is None or seen < wanted:
            now, rows = time.monotonic(), len(self.rows())
            assert now < since + 300, f"no step since {now - since:.0f} s:\n{jobs_now()}"
            longest_s = max(longest_s, now - since)
            if rows > seen:
                seen, since = rows, now
            if wanted is None and back():
                wanted = seen + 3
            time.sleep(0.1)
        return f"step {before}, {longest_s:.0f} s without one, step {len(self.steps())}"

    def check(self) -> None:
        """Every step once, on every batch once, and every group once."""
        steps = self.steps()
        numbers = list(range(1, len(steps) + 1))
        assert [row["step"] for row in steps] == numbers
        assert [row["batch_no"] for row in steps] == numbers
        keys = [key for row in steps for key in row["keys"]]
        assert len(keys) == len(set(keys))

    def logs_of(self, part: str) -> str:
        return "".join(path.read_text() for path in self.log_files(part))

    def log_files(self, part: str) -> list[Path]:
        return sorted((self.plan.directory / "logs").glob(f"{self.plan.name}-{part}-*"))


def jobs_now() -> str:
    return ask("squeue", "-h", "-o", "%i %j %T %r %N")


def none_left() -> bool:
    return not jobs_now()


def all_run() -> bool:
    return set(ask("squeue", "-h", "-o", "%T").split()) == {"RUNNING"}


def restarted(job: str) -> bool:
    return " Restarts=1 " in ask("scontrol", "--oneliner", "show", "job", job) and all_run()


# --- the scenarios ------------------------------------------------------------------------


def train(cluster: Cluster) -> tuple[Run, str]:
    run = Run(cluster, FEW_STEPS, "slurm.servers_per_job=2")
    until("the end of every job", none_left)
    assert "trainer: done: the run is over" in run.logs_of("trainer")
    for part in ("api", "inference", "env"):
        assert run.logs_of(part).splitlines()[-1] == "the run is over", run.logs_of(part)
    return run, f"{run.reach(6)} steps"


def array_of_environments(cluster: Cluster) -> tuple[Run, str]:
    run = Run(cluster, FEW_STEPS, copies=2)
    until("the end of every job", none_left)
    assert len(run.log_files("env")) == 2
    return run, f"{run.reach(6)} steps"


def two_trainer_nodes(cluster: Cluster) -> tuple[Run, str]:
    run = Run(cluster, FEW_STEPS, "trainer.nodes=2")
    until("the end of every job", none_left)
    return run, f"{run.reach(6)} steps"


def scancel(cluster: Cluster) -> tuple[Run, str]:
    run = Run(cluster)
    last = run.reach(3)
    ask("scancel", run.ids["trainer"])
    until("the end of every job", none_left)
    assert "trainer: cancelled: the run is over" in run.logs_of("trainer")
    return run, f"step {last}, all jobs end"


def node_lost_and_back(cluster: Cluster) -> tuple[Run, str]:
    run = Run(cluster)
    run.reach(3)
    node = ask("squeue", "-h", "-j", run.ids["trainer"], "-o", "%N").strip()
    there = ask("squeue", "-h", "-w", node, "-o", "%j").split()
    downs: list[bool] = []

    def moved() -> bool:
        downs.append("DOWN" in state_of(node))
        return any(downs) and all_run()

    said = run.through(lambda: cluster.lose(node), moved)
    cluster.start_node(node)
    until("the node", lambda: state_of(node) == "IDLE")
    return run, f"{said} (with {', '.join(sorted(there))})"


def node_hangs(cluster: Cluster) -> tuple[Run, str]:
    """SLURM gives the trainer's node up while its processes live: srun then ends with status 0."""
    run = Run(cluster)
    run.reach(3)
    node = ask("squeue", "-h", "-j", run.ids["trainer"], "-o", "%N").strip()
    downs: list[bool] = []

    def moved() -> bool:
        downs.append("DOWN" in state_of(node))
        starts = run.logs_of("trainer").count("-m example_trainer.grpo")
        return any(downs) and all_run() and starts > 1

    with cluster.hung(node):
        said = run.through(bool, moved)
        run.reach(len(run.steps()) + 10)
        assert "the run is over" not in run.logs_of("trainer")
    return run, said


def trainer_requeued(cluster: Cluster) -> tuple[Run, str]:
    return requeued(Run(cluster), "trainer")


def api_requeued(cluster: Cluster) -> tuple[Run, str]:
    return requeued(Run(cluster), "api")


def api_killed(cluster: Cluster) -> tuple[Run, str]:
    run = Run(cluster)
    said = run.through(lambda: ask("scancel", "--signal=KILL", f"{run.ids['api']}.0"), all_run)
    assert "attempt 0 of 3 failed" in run.logs_of("api")
    return run, said


def refused_settings(cluster: Cluster) -> tuple[Run, str]:
    run = Run(cluster, "api.args=[--no-such-option]")
    until("the end of every job", none_left)
    assert "refused: the run is over" in run.logs_of("api")
    return run, "every job ends"


def requeued(run: Run, part: str) -> tuple[Run, str]:
    job = run.ids[part]
    return run, run.through(lambda: ask("scontrol", "requeue", job), lambda: restarted(job))


def time_limit(cluster: Cluster) -> tuple[Run, str]:
    run = Run(cluster, "slurm.trainer.time=2", "slurm.grace_s=30")
    said = run.through(bool, lambda: restarted(run.ids["trainer"]))
    assert "the time limit is near" in run.logs_of("trainer")
    return run, said


def pending_environment(cluster: Cluster) -> tuple[Run, str]:
    wide = ("-c", "5", "-N2", "--ntasks-per-node=1", "--parsable", "-o", "/dev/null")
    blocker = ask("sbatch", *wide, "--wrap", "sleep 1000").strip()
    run = Run(cluster, "slurm.environments.cpus-per-task=5")
    until("the line", lambda: "PENDING, Resources" in run.logs_of("api"))
    states = ask(
        "squeue", "-h", "-j", f"{run.ids['inference']},{run.ids['trainer']}", "-o", "%r"
    )
    assert set(states.split()) == {"Dependency"}  # no GPU waits for it
    began = time.monotonic()
    ask("scancel", blocker)
    run.reach(1)
    return (
        run,
        f"named after a minute, step 1 {time.monotonic() - began:.0f} s after it may start",
    )


def resubmission(cluster: Cluster) -> tuple[Run, str]:
    run = Run(cluster)

    def again() -> None:
        ask("scancel", *run.ids.values())
        until("the end of every job", none_left)
        run.submit()

    return run, run.through(again, all_run)


SCENARIOS = (
    *(
        train,
        array_of_environments,
        two_trainer_nodes,
        scancel,
        node_lost_and_back,
        node_hangs,
    ),
    *(trainer_requeued, api_requeued, time_limit, pending_environment, resubmission),
    *(api_killed, refused_settings),
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_a_run_trains_every_batch_once_through(scenario, tmp_path):
    with slurm_cluster(tmp_path) as cluster:
        run, _ = scenario(cluster)
        run.check()


def main(names: list[str]) -> None:
    for scenario in SCENARIOS:
        if names and scenario.__name__ not in names:
            continue
        with (
            tempfile.TemporaryDirectory() as directory,
            slurm_cluster(Path(directory)) as made,
        ):
            run, figures = scenario(made)
            run.check()
        print(f"{scenario.__name__}: {figures}", flush=True)


if __name__ == "__main__":
    if obstacle():
        raise SystemExit(f"skipped: {obstacle()}")
    main(sys.argv[1:])

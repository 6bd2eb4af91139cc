"""Scenarios of a run on a real SLURM of this machine: losses, limits and returns of its jobs.

The limits, cuts and faults are in slurm_faults.py.

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
from pathlib import Path

import pytest

from tests.integration import slurm_faults
from tests.integration.slurm_cluster import (
    Cluster,
    ask,
    obstacle,
    slurm_cluster,
    state_of,
    until,
)
from tests.integration.slurm_run import Run, all_run, node_of, none_left, requeued

ASKED = "ATROPOS_SLURM_TESTS"  # they take an hour, most of it SLURM's own waits
skipped = obstacle() or ("" if os.environ.get(ASKED) else f"set {ASKED}=1")
pytestmark = [pytest.mark.alone, pytest.mark.skipif(bool(skipped), reason=skipped)]
FEW_STEPS = "trainer.settings.training_steps=6"


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
    node = node_of(run.ids["trainer"])
    there = ask("squeue", "-h", "-w", node, "-o", "%j").split()
    downs: list[bool] = []

    def moved() -> bool:
        downs.append("DOWN" in state_of(node))
        return any(downs) and all_run()

    said = run.through(lambda: cluster.lose(node), moved)
    cluster.start_node(node)
    until("the node", lambda: state_of(node) == "IDLE")
    return run, f"{said} (with {', '.join(sorted(there))})"


def trainer_requeued(cluster: Cluster) -> tuple[Run, str]:
    run = Run(cluster)
    return run, requeued(run, run.ids["trainer"])


def api_requeued(cluster: Cluster) -> tuple[Run, str]:
    run = Run(cluster)
    return run, requeued(run, run.ids["api"])


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
    *(train, array_of_environments, two_trainer_nodes, scancel, node_lost_and_back),
    *(trainer_requeued, api_requeued, pending_environment, resubmission),
    *(api_killed, refused_settings, *slurm_faults.SCENARIOS),
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

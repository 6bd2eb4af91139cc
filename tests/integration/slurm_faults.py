"""Scenarios of test_slurm_scenarios.py: limits of time, cuts, a store in PostgreSQL, fault after fault."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from tests.integration.slurm_cluster import Cluster, ask, state_of, until
from tests.integration.slurm_run import (
    Run,
    all_run,
    longest_pause,
    node_of,
    none_left,
    requeued,
    restarts,
)
from tests.postgres_server import running_server

GOOD_STEPS, STEPS = 400, 150
# Of every job. SLURM sends its signal up to a minute early. A step takes two seconds or more, so no
# job reaches the last one.
LIMITS = (
    "slurm.options.time=5",
    "slurm.grace_s=30",
    f"trainer.settings.training_steps={STEPS}",
)
SLOW = Path(__file__).with_name("slow_copy.py")
NEAR = "the time limit is near"


def good_run(cluster: Cluster) -> tuple[Run, str]:
    run, began = (
        Run(cluster, f"trainer.settings.training_steps={GOOD_STEPS}"),
        time.monotonic(),
    )
    until("the end of every job", none_left, 1800)
    return run, f"{run.reach(GOOD_STEPS)} steps, {time.monotonic() - began:.0f} s"


def time_limits(cluster: Cluster) -> tuple[Run, str]:
    """Every job reaches its limit, some of them several times, and queues itself again."""
    return to_the_end(Run(cluster, *LIMITS, script=SLOW))


def chain(cluster: Cluster) -> tuple[Run, str]:
    """The next job of the chain goes on where one has reached its limit."""
    return to_the_end(Run(cluster, *LIMITS, "slurm.chain=9", script=SLOW))


def to_the_end(run: Run) -> tuple[Run, str]:
    began = time.monotonic()
    until("the end of every job", none_left, 1800)
    assert len(run.steps()) == STEPS
    limits = [
        run.logs_of(part).count(NEAR) // 2 for part in ("trainer", "api", "inference", "env")
    ]
    assert all(limits), limits
    assert "trainer: done: the run is over" in run.logs_of("trainer")
    again = len(run.times()) - STEPS
    return run, (
        f"{STEPS} steps, {again} repeated, {time.monotonic() - began:.0f} s, limits of trainer,"
        f" api, inference, environment: {limits}, {longest_pause(run.times()):.0f} s without a step"
    )


def node_hangs(cluster: Cluster) -> tuple[Run, str]:
    """SLURM gives the trainer's node up while its processes live: srun then ends with status 0."""
    return given_up(cluster, cluster.hung)


def cut(cluster: Cluster) -> tuple[Run, str]:
    """The trainer's node and SLURM's controller do not reach each other; the nodes do."""
    return given_up(cluster, cluster.cut)


def given_up(
    cluster: Cluster, lost: Callable[[str], AbstractContextManager[None]]
) -> tuple[Run, str]:
    run = Run(cluster)
    run.reach(3)
    node = node_of(run.ids["trainer"])
    there = ask("squeue", "-h", "-w", node, "-o", "%j").split()
    downs: list[bool] = []

    def moved() -> bool:
        downs.append("DOWN" in state_of(node))
        return any(downs) and all_run() and run.starts_of_trainer() > 1

    with lost(node):
        said = run.through(bool, moved)
        run.reach(len(run.steps()) + 10)
        assert "the run is over" not in run.logs_of("trainer")
    until("the node", lambda: state_of(node) != "" and "DOWN" not in state_of(node))
    run.reach(len(run.steps()) + 10)
    assert all_run()
    return run, f"{said} (with {', '.join(sorted(there))})"


def short_cut(cluster: Cluster) -> tuple[Run, str]:
    """A cut that ends before SLURM gives the node up."""
    run = Run(cluster)
    run.reach(3)

    def cut_for_a_while() -> None:
        with cluster.cut(node_of(run.ids["trainer"])):
            time.sleep(12)

    before = len(run.steps())
    said = run.through(cut_for_a_while, all_run)
    assert not any(map(restarts, run.ids.values()))
    return run, f"{said}; {len(run.steps()) - before} steps meanwhile and after"


def end_in_a_cut(cluster: Cluster) -> tuple[Run, str]:
    """The trainer does its last step while its node does not reach SLURM's controller."""
    run = Run(cluster, "trainer.settings.training_steps=20")
    run.reach(15)
    with cluster.cut(node_of(run.ids["trainer"])):
        until("the record", run.plan.end_record.exists)
        time.sleep(5)
    until("the end of every job", none_left)
    return run, f"{run.reach(20)} steps, every job ends after the cut"


def environments_end(cluster: Cluster) -> tuple[Run, str]:
    """Both environments end by themselves; the trainer takes what is left, and ends the run."""
    run = Run(cluster, copies=2, groups=10)
    until("the end of every job", none_left)
    assert "trainer: done: the run is over" in run.logs_of("trainer")
    return run, f"{len(run.steps())} steps, every job ends"


def postgres(cluster: Cluster) -> tuple[Run, str]:
    """The store is a PostgreSQL of the network; the API moves to the other node and back."""
    with running_server(f"{cluster.net}.0/24") as server:
        url = f"postgresql://atropos@{cluster.net}.1/postgres"
        run = Run(cluster, f"api.env={{ATROPOS_STORE: '{url}'}}")
        run.reach(3)
        job, lines = run.ids["api"], list[str]()
        for moves in range(2):
            node = node_of(job)

            def move() -> None:
                ask("scontrol", "requeue", job)
                ask("scontrol", "update", f"JobId={job}", f"ExcNodeList={node}")

            said = run.through(move, lambda: restarts(job) > moves and all_run())
            assert node_of(job) != node
            lines.append(f"API on another node: {said}")

        def crash() -> None:
            server.kill()
            server.start()

        lines.append(f"kill -9 of PostgreSQL: {run.through(crash)}")
        lines.append(f"API and trainer: {requeued(run, job, run.ids['trainer'])}")
        ask("scancel", run.ids["trainer"])
        until("the end of every job", none_left)
    return run, "\n  " + "\n  ".join(lines)


def one_of_two_trainer_nodes_lost(cluster: Cluster) -> tuple[Run, str]:
    run = Run(cluster, "trainer.nodes=2")
    run.reach(3)
    batch_host = (
        ask("scontrol", "show", "job", run.ids["trainer"]).split("BatchHost=")[1].split()[0]
    )
    other = next(node for node in cluster.addresses if node != batch_host)

    def lose() -> None:
        cluster.lose(other)
        until("its end", lambda: "DOWN" in state_of(other))
        cluster.start_node(other)

    return run, run.through(lose, lambda: run.starts_of_trainer() > 2 and all_run())


def fault_after_fault(cluster: Cluster) -> tuple[Run, str]:
    """One run through everything that SLURM or a person does to single jobs of it."""
    run, lines = Run(cluster, copies=2), list[str]()
    trainer, api = run.ids["trainer"], run.ids["api"]
    servers, environments = run.ids["inference"], run.ids["env-0-copy_server"]

    def killed(job: str) -> Callable[[], object]:
        return lambda: ask("scancel", "--signal=KILL", f"{job}.0")

    faults: dict[str, Callable[[], str]] = {
        "trainer requeued": lambda: requeued(run, trainer),
        "API requeued": lambda: requeued(run, api),
        "server requeued": lambda: requeued(run, f"{servers}_0"),
        "both servers requeued": lambda: requeued(run, f"{servers}_0", f"{servers}_1"),
        "API and trainer requeued": lambda: requeued(run, api, trainer),
        "an environment cancelled": lambda: run.through(
            lambda: ask("scancel", f"{environments}_0")
        ),
        "kill -9 of the trainer": lambda: run.through(killed(trainer)),
        "kill -9 of the API": lambda: run.through(killed(api)),
    }
    for name, happens in faults.items():
        run.reach(len(run.steps()) + 5)
        lines.append(f"{name}: {happens()}")
        print(f"  {lines[-1]}", flush=True)
    began = time.monotonic()
    ask("scancel", trainer)
    until("the end of every job", none_left)
    lines.append(f"trainer cancelled: all jobs end after {time.monotonic() - began:.0f} s")
    lines.append(f"{len(run.times())} steps done, {len(run.steps())} in the end")
    return run, "\n  " + "\n  ".join(lines)


SCENARIOS = (
    *(
        good_run,
        time_limits,
        chain,
        node_hangs,
        cut,
        short_cut,
        end_in_a_cut,
        environments_end,
        postgres,
    ),
    *(one_of_two_trainer_nodes_lost, fault_after_fault),
)

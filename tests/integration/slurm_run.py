"""A run of a tiny model as jobs of the SLURM of slurm_cluster.py, and what its jobs do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atroposlib.trackers.jsonl import last_run
from example_trainer.launch import slurm, submission
from example_trainer.launch.plan import trainer_settings
from tests.integration.slurm_cluster import Cluster, ask, until
from tests.integration.test_lost_nodes import Nodes, cluster_plan

CPU = "{cpus-per-task: 1}"


class Run(Nodes):
    """A run of a tiny model as jobs of the cluster."""

    def __init__(self, cluster: Cluster, *overrides: str, **of_plan: Any) -> None:
        one_cpu = [f"slurm.{section}={CPU}" for section in ("inference", "environments")]
        super().__init__(
            cluster_plan(
                cluster.folder,
                *("slurm.api={cpus-per-task: 1, mem: null}", *one_cpu),
                "slurm.trainer={cpus-per-task: 1, exclusive: null}",
                *("trainer.settings.recover_every_steps=5", *overrides),
                **of_plan,
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

    def times(self) -> list[float]:
        """The time of each step, those included that a later start repeated."""
        return [float(row["time"]) for row in self.rows() if "keys" in row]

    def reach(self, number: int) -> int:
        """Wait for the step and return the last one."""
        until(f"step {number}", lambda: len(self.steps()) >= number)
        return len(self.steps())

    def through(
        self, lose: Callable[[], object], back: Callable[[], object] = lambda: True
    ) -> str:
        """Steps before, the longest standstill, and steps after ``lose``, once ``back`` holds."""
        before = self.reach(3)
        first, wanted = len(self.times()) - 1, None
        lose()
        while wanted is None or len(self.times()) < wanted:
            idle_s = time.time() - self.times()[-1]
            assert idle_s < 300, f"no step since {idle_s:.0f} s:\n{jobs_now()}"
            if wanted is None and back():
                wanted = len(self.times()) + 3
            time.sleep(0.1)
        longest_s = longest_pause(self.times()[first:])
        return f"step {before}, {longest_s:.0f} s without one, step {len(self.steps())}"

    def check(self) -> None:
        """Every step once, on every batch once, and every group once."""
        steps = self.steps()
        numbers = list(range(1, len(steps) + 1))
        assert [row["step"] for row in steps] == numbers
        assert [row["batch_no"] for row in steps] == numbers
        keys = [key for row in steps for key in row["keys"]]
        assert len(keys) == len(set(keys))

    def starts_of_trainer(self) -> int:
        return self.logs_of("trainer").count("-m example_trainer.grpo")

    def logs_of(self, part: str) -> str:
        return "".join(path.read_text() for path in self.log_files(part))

    def log_files(self, part: str) -> list[Path]:
        return sorted((self.plan.directory / "logs").glob(f"{self.plan.name}-{part}-*"))


def longest_pause(times: list[float]) -> float:
    return max(after - before for before, after in zip(times, times[1:]))


def jobs_now() -> str:
    return ask("squeue", "-h", "-o", "%i %j %T %r %N")


def node_of(job: str) -> str:
    return ask("squeue", "-h", "-j", job, "-o", "%N").strip()


def none_left() -> bool:
    return not jobs_now()


def all_run() -> bool:
    return set(ask("squeue", "-h", "-o", "%T").split()) == {"RUNNING"}


def restarts(job: str) -> int:
    """How often SLURM has started a job again, all tasks of an array together."""
    shown = ask("scontrol", "--oneliner", "show", "job", job)
    return sum(map(int, re.findall(r" Restarts=(\d+) ", shown)))


def requeued(run: Run, *jobs: str) -> str:
    """Queue jobs again; the figures of :meth:`Run.through`."""
    before = [restarts(job) for job in jobs]

    def back() -> bool:
        return all_run() and all(restarts(job) > was for job, was in zip(jobs, before))

    return run.through(lambda: ask("scontrol", "requeue", ",".join(jobs)), back)

"""A run on a real SLURM of this machine, through requeues of its jobs and the loss of a node.

Two slurmd, a slurmctld and a munged of the test's own, on free ports of the loopback interface,
with all files in a temporary folder. It needs root and the packages slurm-wlm and munge, and is
skipped with the reason where they are absent. As a program it prints steps before each loss,
seconds of standstill and steps after it:

    python -m tests.integration.test_slurm_requeue
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from atroposlib.processes import free_port
from atroposlib.trackers.jsonl import last_run
from example_trainer.launch import slurm
from example_trainer.launch.__main__ import ROLES
from example_trainer.launch.plan import trainer_settings
from tests.integration.test_lost_nodes import WITHIN_S, Nodes, cluster_plan

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
# Nodes have more CPUs than the machine, as far as SLURM knows.
CONF = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=20
KillWait=15
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP LLN=YES
"""
NODE = (
    "NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs=8 State=UNKNOWN"
)
HERE = "[env, SLURMD_NODENAME=127.0.0.1]"  # the names of the nodes do not resolve
NODES = ("n1", "n2")


def obstacle() -> str:
    """Why there can be no SLURM here; empty if there can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"no {', '.join(absent)} here: apt install slurm-wlm munge"
    return "" if os.geteuid() == 0 else "slurmd needs root"


ASKED = "ATROPOS_SLURM_TESTS"  # it takes 8 minutes, most of them SLURM's own waits
skipped = obstacle() or ("" if os.environ.get(ASKED) else f"set {ASKED}=1")
pytestmark = [pytest.mark.alone, pytest.mark.skipif(bool(skipped), reason=skipped)]


class Cluster:
    """Daemons of one SLURM; every one is a child of this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        nodes = [NODE.format(name=name, port=free_port()) for name in NODES]
        conf = CONF.format(port=free_port(), folder=folder, nodes="\n".join(nodes))
        (folder / "slurm.conf").write_text(conf)
        for name in ("state", *NODES):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")

    def start(self) -> None:
        own = [
            f"--{what}={self.folder}/munge.{what.split('-')[0]}"
            for what in ("socket", "key-file")
        ]
        files = [
            f"--{what}-file={self.folder}/munge.{what}" for what in ("pid", "log", "seed")
        ]
        self._daemon("munged", "--foreground", "--force", *own, *files)
        until("munged", (self.folder / "munge.socket").exists)
        self._daemon("slurmctld", "-D")
        for name in NODES:
            self.start_node(name)
        until(
            "two idle nodes", lambda: ask("sinfo", "-h", "-N", "-o", "%T").count("idle") == 2
        )

    def start_node(self, name: str) -> None:
        self._daemon("slurmd", "-D", "-N", name, known_as=name)

    def lose(self, name: str) -> None:
        """SIGKILL to slurmd and to all that it runs, SLURM's own processes first."""
        self._kill(name)
        for _ in range(2):  # those that were about to start
            found = [one for one in Path("/proc").iterdir() if self._runs_on(one, name)]
            for process in sorted(found, key=lambda one: b"slurmstepd" not in line_of(one)):
                with suppress(ProcessLookupError):
                    os.kill(int(process.name), signal.SIGKILL)

    def _runs_on(self, process: Path, node: str) -> bool:
        if not process.name.isdigit():
            return False
        try:
            environ = set((process / "environ").read_bytes().split(b"\0"))
        except OSError:
            return False
        names = {
            f"{name}={node}".encode() for name in ("SLURMD_NODENAME", "SLURM_JOB_NODELIST")
        }
        conf = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        return conf in environ and bool(names & environ)

    def close(self) -> None:
        for name in NODES:
            self.lose(name)
        for name in list(self.running):
            self._kill(name)

    def _kill(self, name: str) -> None:
        if process := self.running.pop(name, None):
            process.kill()
            process.wait()

    def _daemon(self, *words: str, known_as: str = "") -> None:
        name = known_as or words[0]
        with (self.folder / f"{name}.out").open("ab") as log:
            self.running[name] = subprocess.Popen(
                words, stdout=log, stderr=log, env={**os.environ, "SLURMD_NODENAME": name}
            )


def line_of(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def ask(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    return done.stdout


def until(what: str, happens: Callable[[], object], within_s: float = 120.0) -> None:
    end = time.monotonic() + within_s
    while not happens():
        assert time.monotonic() < end, f"waited {within_s:.0f} s for {what}"
        time.sleep(0.2)


class Run(Nodes):
    """A run of a tiny model as jobs of the cluster."""

    def __init__(self, folder: Path) -> None:
        cpu = "{cpus-per-task: 1}"
        super().__init__(
            cluster_plan(
                folder,
                "slurm.api={cpus-per-task: 1, mem: null}",
                *(f"slurm.{section}={cpu}" for section in ("inference", "environments")),
                "slurm.trainer={cpus-per-task: 1, exclusive: null}",
                *(f"slurm.container.{role}={HERE}" for role in ROLES),
                "trainer.settings.recover_every_steps=5",
            )
        )
        jobs = slurm.jobs(self.plan, trainer_settings(self.plan)[1].trainer_retries)
        self.ids = slurm.submit(self.plan, jobs)

    def steps(self) -> list[dict[str, Any]]:
        """The steps that led to the present weights."""
        return last_run(self.rows())

    def through(
        self, what: str, lose: Callable[[], object], back: Callable[[], object]
    ) -> str:
        """Steps before, the longest standstill, and steps after a loss."""
        before = len(self.steps())
        lose()
        longest_s, seen, since, wanted = 0.0, len(self.rows()), time.monotonic(), None
        end = since + WITHIN_S
        while wanted is None or seen < wanted:
            now, rows = time.monotonic(), len(self.rows())
            assert now < end, f"{what}: no step since {now - since:.0f} s"
            if rows > seen:
                seen, since = rows, now
            longest_s = max(longest_s, now - since)
            if wanted is None and back():
                wanted = seen + 3
            time.sleep(0.05)
        return (
            f"{what}: step {before}, {longest_s:.0f} s without one, step {len(self.steps())}"
        )

    def check(self) -> None:
        """Every step once, on every batch once, and every group once."""
        steps = self.steps()
        numbers = list(range(1, len(steps) + 1))
        assert [row["step"] for row in steps] == numbers
        assert [row["batch_no"] for row in steps] == numbers
        keys = [key for row in steps for key in row["keys"]]
        assert len(keys) == len(set(keys))


def all_run() -> bool:
    """Whether every job runs. SLURM's own wait after a requeue, two minutes, is cut short."""
    jobs = [line.split() for line in ask("squeue", "-h", "-o", "%i %T %r").splitlines()]
    for job, state, reason in jobs:
        if (state, reason) == ("PENDING", "BeginTime"):
            ask("scontrol", "update", f"JobId={job}", "StartTime=now")
    return all(state == "RUNNING" for _, state, _ in jobs)


def restarted(job: str) -> bool:
    shown = ask("scontrol", "--oneliner", "show", "job", job)
    return " Restarts=1 " in shown and all_run()


@contextmanager
def running(folder: Path) -> Iterator[tuple[Cluster, Run]]:
    cluster = Cluster(folder)
    try:
        cluster.start()
        run = Run(folder)
        run.until("the third step", lambda: len(run.rows()) >= 3)
        yield cluster, run
    finally:
        cluster.close()


def lose_them(cluster: Cluster, run: Run, report: Callable[[str], None] = print) -> None:
    """Requeue the trainer's job, the API's and a server's, then lose the node of the other server."""
    ids = {"trainer": run.ids["trainer"], "API": run.ids["api"]}
    ids["server"] = f"{run.ids['inference']}_0"
    for what, job in ids.items():
        report(
            run.through(
                f"the {what}'s job is requeued",
                lambda: ask("scontrol", "requeue", job),
                lambda: restarted(job),
            )
        )
        run.check()
    node = ask("squeue", "-h", "-j", f"{run.ids['inference']}_1", "-o", "%N").strip()
    there = ask("squeue", "-h", "-w", node, "-o", "%j").split()
    downs: list[bool] = []

    def moved() -> bool:
        downs.append("down" in ask("sinfo", "-h", "-n", node, "-o", "%T"))
        return any(downs) and all_run()

    about = f"a node with {len(there)} jobs is lost"
    report(run.through(about, lambda: cluster.lose(node), moved))
    cluster.start_node(node)
    until("the node", lambda: "down" not in ask("sinfo", "-h", "-n", node, "-o", "%T"))
    run.check()


def test_a_run_goes_on_through_requeues_of_its_jobs(tmp_path):
    with running(tmp_path) as (cluster, run):
        lose_them(cluster, run)


if __name__ == "__main__":
    if obstacle():
        raise SystemExit(f"skipped: {obstacle()}")
    with tempfile.TemporaryDirectory() as directory, running(Path(directory)) as (made, runs):
        lose_them(made, runs)

"""A SLURM of two nodes on this machine, each node with its own namespaces.

A node has its own network (a veth pair on a common bridge), processes, host name and hosts file;
it shares the files, /sys included. The loss of a node is the kill of the first process of its
namespace, which takes every process and connection of the node with it. All daemons are children
of the test's process and end with it. It needs root and the packages slurm-wlm and munge.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from atroposlib.processes import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
PROGRAMS += ("ip", "unshare", "nsenter", "setpriv")
NODES = ("n1", "n2")
NODE_ENV = "SLURMD_NODENAME"
# Nodes have more CPUs than the machine, as far as SLURM knows. A job that is requeued waits until
# its credential is over (cred_expire), by default two minutes.
CONF = """\
ClusterName=test
SlurmctldHost={host}({net}.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
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
SchedulerParameters=bf_interval=2,sched_interval=5
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=20
TCPTimeout=2
KillWait=15
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP LLN=YES OverTimeLimit=0
"""
NODE = "NodeName={name} NodeHostname={name} NodeAddr={address} Port=6818 CPUs={cpus} State=UNKNOWN"
# The shell is the first process: it collects the children of those that ended before them.
START_NODE = """\
hostname {name} && mount --bind {folder}/hosts /etc/hosts && ip link set lo up || exit 1
echo isolated; read -r _
ip address add {address}/24 dev eth0 && ip link set eth0 up || exit 1
slurmd -D -N {name} >> {folder}/{name}.out 2>&1 & wait"""


def obstacle() -> str:
    """Why there can be no SLURM here; empty if there can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"no {', '.join(absent)} here: apt install slurm-wlm munge iproute2 util-linux"
    if os.geteuid() != 0:
        return "slurmd needs root"
    names = ("true",)
    tried = subprocess.run((*UNSHARE, *names), capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"


WITH_US = ("setpriv", "--pdeathsig", "KILL")  # ends with the test's process
UNSHARE = (
    "unshare",
    "--net",
    "--mount",
    "--uts",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)


class Cluster:
    """Daemons of one SLURM; ``SLURM_CONF`` of this process names it."""

    def __init__(self, folder: Path, cpus: int = 8) -> None:
        self.folder, self.running = folder, dict[str, subprocess.Popen[str]]()
        number = os.getpid() % 250
        self.bridge, self.net = f"atropos{number}", f"198.18.{number}"
        self.addresses = {name: f"{self.net}.{i + 2}" for i, name in enumerate(NODES)}
        nodes = [
            NODE.format(name=name, address=address, cpus=cpus)
            for name, address in self.addresses.items()
        ]
        values = {"host": os.uname().nodename, "net": self.net, "port": free_port()}
        conf = CONF.format(**values, folder=folder, nodes="\n".join(nodes))
        (folder / "slurm.conf").write_text(conf)
        names = {"127.0.0.1": "localhost", f"{self.net}.1": os.uname().nodename}
        names |= {address: name for name, address in self.addresses.items()}
        (folder / "hosts").write_text("".join(f"{a} {name}\n" for a, name in names.items()))
        for name in ("state", *NODES):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")

    def start(self) -> None:
        ip("link", "add", self.bridge, "type", "bridge")
        ip("address", "add", f"{self.net}.1/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid"}
        files |= {"log-file": "log", "seed-file": "seed"}
        own = [f"--{option}={self.folder}/munge.{end}" for option, end in files.items()]
        self._daemon("munged", "--foreground", "--force", *own)
        until("munged", (self.folder / "munge.socket").exists)
        self._daemon("slurmctld", "-D")
        for name in NODES:
            self.start_node(name)
        until("two idle nodes", lambda: all(state_of(name) == "IDLE" for name in NODES))

    def start_node(self, name: str) -> None:
        values = {"name": name, "folder": self.folder, "address": self.addresses[name]}
        shell = subprocess.Popen(
            (*WITH_US, *UNSHARE, "sh", "-c", START_NODE.format(**values)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.running[name] = shell
        assert shell.stdin and shell.stdout and shell.stdout.readline() == "isolated\n"
        link = f"{self.bridge}{name}"
        peer = ("peer", "name", "eth0", "netns", str(shell.pid))
        ip("link", "add", link, "type", "veth", *peer)
        ip("link", "set", link, "master", self.bridge, "up")
        shell.stdin.close()
        shell.stdout.close()

    def lose(self, name: str) -> None:
        """End every process of a node at once; it has no network from then on."""
        if process := self.running.pop(name, None):
            process.kill()
            process.wait()
            subprocess.run(
                ("ip", "link", "delete", f"{self.bridge}{name}"), capture_output=True
            )

    @contextmanager
    def hung(self, name: str) -> Iterator[None]:
        """Stop the daemon of a node; the processes of its jobs go on."""
        [daemon] = ask("pgrep", "-f", f"^slurmd -D -N {name}$").split()
        os.kill(int(daemon), signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(int(daemon), signal.SIGCONT)

    @contextmanager
    def cut(self, name: str) -> Iterator[None]:
        """Drop what a node sends to the controller; the nodes reach each other."""
        inside = ("nsenter", f"--net=/proc/{self.running[name].pid}/ns/net", "ip", "route")
        route = ("blackhole", f"{self.net}.1/32")
        subprocess.run((*inside, "add", *route), check=True)
        try:
            yield
        finally:
            subprocess.run((*inside, "delete", *route), check=True)

    def close(self) -> None:
        for name in list(self.running):
            self.lose(name)
        subprocess.run(("ip", "link", "delete", self.bridge), capture_output=True)

    def _daemon(self, *words: str) -> None:
        with (self.folder / f"{words[0]}.out").open("ab") as log:
            self.running[words[0]] = subprocess.Popen(
                (*WITH_US, *words), stdout=log, stderr=log, text=True
            )


def ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True)


def ask(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, timeout=60).stdout


def state_of(node: str) -> str:
    """State of a node, such as DOWN+NOT_RESPONDING; sinfo may show MIXED for minutes after it."""
    shown = re.search(r" State=(\S+)", ask("scontrol", "--oneliner", "show", "node", node))
    return shown[1] if shown else ""


def until(what: str, happens: Callable[[], object], within_s: float = 300.0) -> None:
    end = time.monotonic() + within_s
    while not happens():
        assert time.monotonic() < end, f"waited {within_s:.0f} s for {what}"
        time.sleep(0.2)


@contextmanager
def slurm_cluster(folder: Path, cpus: int = 8) -> Iterator[Cluster]:
    cluster = Cluster(folder, cpus)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()

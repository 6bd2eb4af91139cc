"""A run on a Ray cluster: a placement group, and an actor for each process.

    placement group   CPUs and GPUs of every process: all or none
    actor             runs `atropos-launch node` as a child, which ends when the actor does

    a process fails          started again, up to restarts (recover_retries) times
    its node is lost         Ray makes the actor anew where there is room, without a limit;
                             Ray's own report of it is in logs/ray.log
    exit code 2              invalid settings: the run ends, because another start fails alike
    trainer: exit 0          the run is done, the rest are ended
    the launcher is gone     Ray ends its actors

Ray is an extra, and imported where it is used.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from atroposlib.errors import ConfigError
from atroposlib.processes import Exit, RunFailed, StopRequest, log_tail
from atroposlib.utils.command.folder_lock import FolderLock
from example_trainer.launch import slurm
from example_trainer.launch.check import invalid_settings
from example_trainer.launch.local import (
    ANOTHER_FOLDER,
    GRACE_S,
    INVALID,
    TRAINER,
)
from example_trainer.launch.plan import Plan
from example_trainer.launch.ray_actor import AGAIN, place_actors
from example_trainer.launch.ray_parts import missing, parts
from example_trainer.launch.slurm import FIRST_PORT, PORTS, WAIT_LINE_S

POLL_S = 0.5
LOOK_S = 2.0  # between two looks for lost nodes
RAY_LOG = "ray.log"  # in the folder of the logs


class RayRun:
    """The actors of a run, from the launcher's side.

    Args:
        out: for lines of the launcher, since all other output of the process is Ray's.
    """

    def __init__(self, ray: Any, plan: Plan, trainer_retries: int, out: TextIO) -> None:
        self.ray, self.plan, self.retries, self.out = ray, plan, trainer_retries, out
        self.parts, self.logs = parts(plan), plan.directory / "logs"
        bundles = [part.resources for part in self.parts]
        self.group = ray.util.placement_group(bundles, strategy=plan.ray.strategy)
        self.actors = place_actors(ray, self.group, plan, self.parts)
        self.start_at = dict.fromkeys(range(len(self.parts)), 0.0)  # starts of waiting parts
        self.running: dict[Any, int] = {}  # keys: results to come
        self.attempts, self.failures = Counter[int](), Counter[int]()
        self.told_at = self.looked_at = time.monotonic()
        self.homes: dict[str, list[str]] = {}  # names of the parts on each node, by its id

    def print_line(self, line: str) -> None:
        print(line, file=self.out, flush=True)

    def watch(self, stop: StopRequest) -> None:
        """Return when the trainer is done. Raises as :func:`run_ray`."""
        of_trainer = {i for i, part in enumerate(self.parts) if part.role == TRAINER}
        while of_trainer & {*self.start_at, *self.running.values()}:
            stop.check()
            self._start_those_that_wait(of_trainer)
            self._print_lost_nodes()
            refs = self.ray.wait([*self.running], timeout=POLL_S)[0] if self.running else []
            for ref in refs:
                if (i := self.running.pop(ref, None)) is not None:
                    self._restart(i, self._code(i, ref), of_trainer)

    def _code(self, i: int, ref: Any) -> int:
        try:
            return int(self.ray.get(ref))
        except self.ray.exceptions.RayError as error:
            raise RunFailed(f"{self.parts[i].name}: {error}") from error

    def _print_lost_nodes(self) -> None:
        """Print the parts of a lost node: Ray starts them again without a report to the launcher."""
        if time.monotonic() - self.looked_at < LOOK_S:
            return
        self.looked_at, records = time.monotonic(), self.ray.nodes()
        addresses = {one["NodeID"]: one["NodeManagerAddress"] for one in records}
        alive = {one["NodeID"] for one in records if one["Alive"]}
        for node in self.homes.keys() - alive:
            names = ", ".join(self.homes.pop(node))
            report = self.logs / RAY_LOG
            self.print_line(
                f"node {addresses.get(node, node)} is lost, with {names}: they start again where"
                f" there is room; Ray's report is in {report}"
            )
        places = self.ray.util.placement_group_table(self.group)["bundles_to_node_id"]
        for i, part in enumerate(self.parts):
            if places.get(i) in alive:
                names_here = self.homes.setdefault(places[i], [])
                names_here += [part.name] if part.name not in names_here else []

    def _start_those_that_wait(self, of_trainer: set[int]) -> None:
        now = time.monotonic()
        if not self.start_at and now - self.told_at < WAIT_LINE_S:
            return
        table = self.ray.util.placement_group_table(self.group)
        nodes = {record["NodeID"]: record for record in self.ray.nodes() if record["Alive"]}
        places = table["bundles_to_node_id"]
        if lacking := [p for i, p in enumerate(self.parts) if places.get(i) not in nodes]:
            if now - self.told_at >= WAIT_LINE_S:
                sizes = [node["Resources"] for node in nodes.values()]
                free = self.ray.available_resources()
                self.print_line(f"waiting for {missing(lacking, sizes, free)}")
                self.told_at = now
            return
        first = min(of_trainer)
        meeting = f"{self.plan.directory} {self.attempts[first]}".encode()
        port = FIRST_PORT + zlib.crc32(meeting) % PORTS
        meet = ("--meet", f"{nodes[places[first]]['NodeManagerAddress']}:{port}")
        for i in [i for i, at in self.start_at.items() if at <= now]:
            del self.start_at[i]
            home = places[i] if i in of_trainer and len(of_trainer) > 1 else None
            more = meet if i in of_trainer else ()
            self.running[self.actors[i].run.remote(self.attempts[i], more, home)] = i

    def _restart(self, i: int, code: int, of_trainer: set[int]) -> None:
        """Start part ``i`` again, a rank with all ranks. Raises as :func:`run_ray`."""
        name, role = self.parts[i].name, self.parts[i].role
        log = self.logs / f"{name}.log"
        if code == INVALID.returncode:
            raise invalid_settings(log, self.plan.places)
        if code == 0 and role == "environment":
            return
        other_ranks = of_trainer & {*self.start_at, *self.running.values()}
        if code == 0 and role == TRAINER and (other_ranks or self.plan.end_record.exists()):
            return
        self.failures[i] += code != AGAIN
        setting = "recover_retries" if role == TRAINER else "restarts"
        limit = self.retries if role == TRAINER else self.plan.restarts
        line = f"{name} ended ({Exit(code)})"
        if self.failures[i] > limit:
            times = f"{limit + 1} times ({setting})"
            raise RunFailed(f"{line}, {times}; log: {log}", log_tail(log))
        self.print_line(f"{line}; starting it again ({self.failures[i]} of {limit})")
        for rank in of_trainer if i in of_trainer else (i,):
            self.actors[rank].stop.remote(self.attempts[rank], GRACE_S)
            self.running = {ref: index for ref, index in self.running.items() if index != rank}
            self.attempts[rank] += 1
            self.start_at[rank] = time.monotonic() + self.plan.restart_delay_s

    def end(self) -> None:
        """End every process, and wait for it."""
        for i in {*self.running.values()}:
            self.actors[i].stop.remote(self.attempts[i], GRACE_S)
        if refs := [*self.running]:
            self.ray.wait(refs, num_returns=len(refs), timeout=2 * GRACE_S)


def run_ray(plan: Plan, trainer_retries: int) -> int:
    """Start all processes on the cluster of RAY_ADDRESS, else of this machine; 0: trainer done.

    Raises:
        ConfigError: Ray or its cluster is missing, or settings are invalid.
        RunFailed: a process ended for good; names it, with the end of its log.
        Interrupted: a signal came.
    """
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise ConfigError("Ray is missing: pip install 'atropos-rl[ray]'") from error
    with FolderLock(plan.directory, ANOTHER_FOLDER):
        slurm.write_files(plan)
        return _run(ray, plan, trainer_retries)


def _run(ray: Any, plan: Plan, trainer_retries: int) -> int:
    with output_of_ray(plan.directory / "logs" / RAY_LOG) as out:
        try:
            ray.init(os.environ.get("RAY_ADDRESS") or "auto", log_to_driver=False)
        except ConnectionError as error:
            raise ConfigError(
                f"no Ray cluster (ray start --head, or RAY_ADDRESS): {error}"
            ) from error
        stop = StopRequest()
        stop.listen()
        run = RayRun(ray, plan, trainer_retries, out)
        run.print_line(f"{plan.name}: logs in {plan.directory / 'logs'}")
        try:
            run.watch(stop)
        finally:
            run.end()
            ray.shutdown()
    print(f"{plan.name}: done, in {plan.directory}", flush=True)
    return 0


@contextmanager
def output_of_ray(log: Path) -> Iterator[TextIO]:
    """Append what this process and its libraries write to ``log``; yields its own output.

    Ray writes some 60 lines of its state for each lost node, also where it forwards no logs.
    """
    with log.open("ab") as file, os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        own = {number: os.dup(number) for number in (1, 2)}
        try:
            _redirect(dict.fromkeys(own, file.fileno()))
            yield out
        finally:
            _redirect(own)
            for kept in own.values():
                os.close(kept)


def _redirect(targets: Mapping[int, int]) -> None:
    """Let descriptors of the standard output mean other files from now on."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for number, target in targets.items():
        os.dup2(target, number)

"""Stored rollouts scored by a reward in separate processes.

    records --chunks--> jobs processes --outcomes--> (record, outcome), in the order of arrival

A process that stands still beyond the time of a rollout (code without the interpreter) or that dies
is replaced. The rollout that it worked on is a failure; the rest of its chunk is scored again.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import msgspec

from atroposlib.api.archive.rollout_tables import record_json
from atroposlib.errors import ConfigError
from atroposlib.travel import scoring_process
from atroposlib.travel.scoring_process import READY, TIMEOUT, RewardOutcome, Values

CHUNK = 128  # rollouts that a process gets at a time
START_S = 120.0  # bound of a start; torch takes seconds to import
GRACE_S = 5.0  # beyond the time of a rollout, until a process is replaced
END_S = 5.0  # bound of an end
CRASHED = "crashed"
MAX_REPLACED = 100  # processes; a reward that ends so many is a mistake
Work = tuple[Any, Values]  # a record of the caller, and the arguments of its reward


class ScoringProcesses:
    """Processes that score; a context, which ends them.

    Args:
        reward: name, see ``stored_reward``.
        timeout_s: time of a rollout.
    """

    def __init__(self, reward: str, jobs: int, timeout_s: float) -> None:
        self._reward, self._timeout_s = reward, timeout_s
        self._jobs = [ScoringJob(reward, timeout_s) for _ in range(jobs)]
        self._replaced = 0

    def __enter__(self) -> ScoringProcesses:
        return self

    def __exit__(self, *raised: object) -> None:
        for job in self._jobs:
            job.close()

    def scores(self, work: Iterable[Work]) -> Iterator[tuple[Any, RewardOutcome]]:
        """Outcomes of all work.

        Raises ConfigError: the reward cannot be loaded in a process, or a process does not start.
        """
        source = iter(work)
        again: deque[list[Work]] = deque()
        exhausted = False
        while True:
            for job in self._jobs:
                if not job.is_idle:
                    continue
                chunk = again.popleft() if again else list(islice(source, CHUNK))
                if chunk:
                    job.begin(chunk)
                exhausted = exhausted or not chunk
            busy = [job for job in self._jobs if not job.is_idle]
            if not busy:
                if exhausted and not again:
                    return
                continue
            end = min(job.deadline for job in busy)
            wait([job.connection for job in busy], max(0.0, end - time.monotonic()))
            for job in busy:
                yield from job.outcomes()
                if job.is_over:
                    self._count_replaced()
                    failures, rest = job.replace()
                    yield from failures
                    if rest:
                        again.append(rest)

    def _count_replaced(self) -> None:
        self._replaced += 1
        if self._replaced > MAX_REPLACED:
            raise ConfigError(
                f"reward {self._reward}: {MAX_REPLACED} processes died or stood still: try it with"
                " --sample 10, or give it more time with --timeout"
            )


class ScoringJob:
    """A process, the chunk that it works on, and the time by which it has to report."""

    def __init__(self, reward: str, timeout_s: float) -> None:
        self._reward, self._timeout_s = reward, timeout_s
        self._chunk: dict[int, Work] = {}  # key: place; no outcome yet
        self._is_ready = self._is_dead = False
        self._start()

    @property
    def is_idle(self) -> bool:
        return not self._chunk

    @property
    def is_over(self) -> bool:
        """Whether the process died, or is silent beyond its time."""
        late = not self.is_idle and time.monotonic() > self.deadline
        return self._is_dead or late

    def begin(self, chunk: list[Work]) -> None:
        """Send a chunk; the process is idle and reads at once."""
        if not self._is_ready:
            self._await_start()
        self._chunk = dict(enumerate(chunk))
        self._extend()
        try:
            self.connection.send_bytes(record_json([values for _, values in chunk]))
        except OSError:
            self._is_dead = True

    def outcomes(self) -> Iterator[tuple[Any, RewardOutcome]]:
        """Outcomes that have arrived."""
        with suppress(ConnectionError):
            while self._chunk and self.connection.poll():
                try:
                    message = self.connection.recv_bytes()
                except EOFError:
                    break
                outcome = msgspec.msgpack.decode(message, type=RewardOutcome)
                self._extend()
                yield self._chunk.pop(outcome.place)[0], outcome
            else:
                return
        self._is_dead = True

    def replace(self) -> tuple[list[tuple[Any, RewardOutcome]], list[Work]]:
        """Start another process; return the failure of the rollout in work, and the rest."""
        text = "the process of the reward died"
        kind = CRASHED
        if not self._is_dead:
            kind = TIMEOUT
            text = f"no result after {self._timeout_s:g} s, and the reward could not be interrupted"
        places = sorted(self._chunk)
        failed = [
            (self._chunk[place][0], RewardOutcome(place, None, kind, text))
            for place in places[:1]
        ]
        rest = [self._chunk[place] for place in places[1:]]
        self.close()
        self._chunk = {}
        self._start()
        return failed, rest

    def close(self) -> None:
        """End the process within its bound."""
        self.connection.close()
        self._process.terminate()
        self._process.join(END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(END_S)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self.connection: Connection = ours
        arguments = (theirs, self._reward, self._timeout_s)
        self._process: SpawnProcess = context.Process(
            target=scoring_process.serve_outcomes, args=arguments
        )
        self._process.start()
        theirs.close()
        self._is_ready = self._is_dead = False

    def _await_start(self) -> None:
        if not self.connection.poll(START_S):
            raise ConfigError(
                f"reward {self._reward}: its process did not start in {START_S:g} s"
            )
        try:
            message = self.connection.recv_bytes().decode()
        except (EOFError, ConnectionError) as cause:
            raise ConfigError(
                f"reward {self._reward}: its process died at its import"
            ) from cause
        if message != READY:
            raise ConfigError(message)
        self._is_ready = True

    def _extend(self) -> None:
        self.deadline = time.monotonic() + self._timeout_s + GRACE_S

"""Base class of the publishers, and the thread that looks after servers between publishes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from atroposlib.errors import surviving
from example_trainer.distributed.collectives import run_on_rank0
from example_trainer.model.model_dir import TrainerState, is_tied
from example_trainer.model.policy import Policy
from example_trainer.settings.config import TrainingConfig
from example_trainer.weights.engines import InferenceServer, ServerGone
from example_trainer.weights.engines.http import GONE_AFTER_S
from example_trainer.weights.fleet import POLL_S, Fleet, call_all

logger = logging.getLogger(__name__)
Announce = Callable[[int], None]  # sends a version to the rollout API
SILENT = "GET /health has no answer"
RESTARTED = "restarted with other weights"


class Publisher:
    """Publishes the weights of a policy to all servers, in the order of the package.

    Every rank has a publisher; only rank 0 has the servers. Subclasses implement how weights
    are staged and loaded.
    """

    retries = 0  # repetitions of a failed load
    renews = True  # whether :meth:`load` gives a server the staged weights

    def __init__(
        self,
        cfg: TrainingConfig,
        engines: Sequence[InferenceServer],
        announce: Announce | None,
        on_wait: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.cfg = cfg
        self.fleet = Fleet(
            engines,
            cfg.publish_timeout_s,
            cfg.server_timeout_s,
            on_wait,
            slow_s=cfg.publish_slow_s if self.renews else None,
        )
        self._announce = announce
        # Version that the servers hold, and where it is staged (None: it is their first).
        self._held: tuple[int, Path | None] | None = None

    @property
    def engines(self) -> Sequence[InferenceServer]:
        """All servers, including servers that are left out."""
        return self.fleet.engines

    @property
    def publishes_start(self) -> bool:
        """Whether servers answer environments only after the first publish."""
        return False

    @property
    def sent_bytes(self) -> int:
        """Bytes of a version that is staged in no file."""
        return 0

    def publish(self, policy: Policy, state: TrainerState) -> None:
        """Make every server hold ``state.version``. Collective: every rank calls it.

        Raises:
            PublishFailed: a server refuses, or none answers; see the package.
            CheckpointError: nothing could be staged; no server was touched.
        """
        with self.fleet.lock:
            while not self._publish_once(policy, state):
                logger.warning("no server took the weights: publishing again")

    def _publish_once(self, policy: Policy, state: TrainerState) -> bool:
        """Publish once; False if a server was lost in a way that needs all steps again."""
        world = policy.world
        if self.cfg.debug_loading and world.is_rank0:
            for name, tensor in policy.model.state_dict().items():
                logger.info(f"publishing {name} {tuple(tensor.shape)}")
        staged = self.stage(policy, state)
        run_on_rank0(world, self.fleet.pause)
        if not self.apply(policy, staged, state.version):
            return False
        if not run_on_rank0(world, lambda: self._finish(state.version, staged)):
            return False
        if world.is_rank0:
            self.tidy()
        return True

    def begin(self, version: int) -> None:
        """The servers hold their first weights, which are this version."""
        for engine in self.engines:
            engine.label(version)
        self._held = version, None

    def lost_servers(self) -> bool:
        """Whether servers are gone or restarted; if all are, wait for any. Rank 0 only."""
        fleet, before = self.fleet, len(self.fleet.absent)
        for engine in fleet.present:
            self._leave_out_lost(engine)
        if len(fleet.absent) == before:
            return False
        if self._held is None:
            fleet.gather()
        fleet.wait(self.look)
        return True

    def look(self) -> None:
        """Give servers that came back, or restarted, the current weights; rank 0 only.

        A publish may begin meanwhile: it goes on without these servers.

        Raises:
            PublishFailed: all have been absent for too long.
        """
        if self._held is None or not self.fleet.lock.acquire(blocking=False):
            return  # no publish yet, or a publish in progress
        try:
            self.fleet.follow(self.fleet)
            busy = self.fleet.renewing | self.fleet.held.keys()
            engines = [e for e in self.engines if e.url not in busy]
            held = self._held
            lost = call_all(engines, self._leave_out_lost)
            due = [
                engine
                for engine, why in zip(engines, lost)
                if engine.url in self.fleet.absent and why in (None, RESTARTED)
            ]
            self.fleet.renewing.update(engine.url for engine in due)
            self.fleet.check()
        finally:
            self.fleet.lock.release()
        self.fleet.call_most(due, partial(self._renew, held), self.fleet.slow_s, needed=0)

    def _leave_out_lost(self, engine: InferenceServer) -> str | None:
        """Leave out a server that is gone or restarted; return why."""
        why = None
        if not engine.http.is_ready():
            why = SILENT
        elif self._held and engine.version() != str(self._held[0]):
            why = RESTARTED
        if why == SILENT:
            self.fleet.behind.discard(engine.url)
        is_released = why == RESTARTED and engine.url in self.fleet.absent
        if why is not None and not is_released:
            self.fleet.leave_out([(engine.url, ServerGone(why))])
        return why

    def _renew(self, held: tuple[int, Path | None], engine: InferenceServer) -> None:
        """Give a server the weights ``held``, and take it back if they are still current."""
        version, staged = held
        try:
            engine.pause()
            if engine.version() == str(version):
                pass
            elif staged is None:
                engine.label(version)
            elif self.renews:
                self.load(engine, str(staged), version)
            else:
                return  # it stays paused until the next publish
        finally:
            self.fleet.renewing.discard(engine.url)
        if not self.fleet.lock.acquire(timeout=POLL_S):
            return  # a publish: the next look finds what it has left
        try:
            if self._held == held and engine.version() == str(version):
                engine.resume()
                self.fleet.take_back(engine)
        finally:
            self.fleet.lock.release()

    def stage(self, policy: Policy, state: TrainerState) -> Path | None:
        """Prepare the weights while servers generate; their path, if any. Collective."""
        raise NotImplementedError

    def apply(self, policy: Policy, staged: Path | None, version: int) -> bool:
        """Load the staged weights on every server; all are paused. Collective.

        False: a server was left out, and the rest need all steps again.
        """

        def load() -> None:
            self.fleet.load(lambda e: self.load(e, str(staged), version), self.retries)

        run_on_rank0(policy.world, load)
        return True

    def load(self, engine: InferenceServer, path: str, version: int) -> None:
        """Load the staged weights on a server."""
        raise NotImplementedError

    def tidy(self) -> None:
        """Remove data that only older versions needed; servers generate again."""

    def close(self) -> None:
        """Release process groups and shared memory. The base class has none."""

    def needs_untying(self, policy: Policy) -> bool:
        """Whether a tied output head is sent as a separate tensor."""
        if not is_tied(policy):
            return False
        if self.cfg.untie_published_head is not None:
            return self.cfg.untie_published_head
        return any(engine.wants_untied_head for engine in self.engines)

    def _finish(self, version: int, staged: Path | None) -> bool:
        again = partial(self.load, path=str(staged), version=version) if self.renews else None
        self.fleet.verify(version, again)
        self.fleet.resume()
        if self.engines and not self.fleet.present:
            return False
        self._held = version, staged or Path()
        size = bytes_in(staged) if staged is not None else self.sent_bytes
        for engine in self.fleet.present:
            self.fleet.measure(engine, load_bytes=size)
        if self._announce is not None:
            self._announce(version)
        return True


def bytes_in(path: Path) -> int:
    """Size of a file, or of all files below a directory."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


class Keeper:
    """A thread that calls :meth:`Publisher.look` every few seconds; without servers it does nothing."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.problem: Exception | None = None  # error that ended the thread
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def check(self) -> None:
        """Raise what ended the thread."""
        if self.problem is not None:
            raise self.problem

    def __enter__(self) -> Keeper:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.set()
        self._thread.join(timeout=GONE_AFTER_S)

    def _run(self) -> None:
        while self.problem is None and not self._stop.wait(POLL_S):
            with surviving(self._end_by):
                self._publisher.look()

    def _end_by(self, problem: Exception) -> None:
        self.problem = problem  # raised in the loop at its next wait

"""Base class of the publishers, and the thread that looks after servers between publishes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from atroposlib.errors import AtroposError
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


class Publisher:
    """Publishes the weights of a policy to all servers, in the order of the package.

    Every rank has one; only rank 0 has the servers. Subclasses implement how weights are
    staged and loaded.
    """

    retries = 0  # of a load that failed
    renews = True  # whether :meth:`load` gives one server the staged weights

    def __init__(
        self,
        cfg: TrainingConfig,
        engines: Sequence[InferenceServer],
        announce: Announce | None,
        on_wait: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.cfg = cfg
        self.fleet = Fleet(engines, cfg.publish_timeout_s, cfg.server_timeout_s, on_wait)
        self._announce = announce
        # Version that the servers hold, and where it is staged (None: it is their first).
        self._held: tuple[int, Path | None] | None = None

    @property
    def engines(self) -> Sequence[InferenceServer]:
        """All servers, those that are left out too."""
        return self.fleet.engines

    @property
    def publishes_start(self) -> bool:
        """Whether servers answer environments only after the first publish."""
        return False

    def publish(self, policy: Policy, state: TrainerState) -> None:
        """Make every server hold ``state.version``. Collective: every rank calls it.

        Raises:
            PublishFailed: a server refuses, or none answers; see the package.
            CheckpointError: nothing could be staged; no server was touched.
        """
        with self.fleet.lock:
            while not self._published(policy, state):
                logger.warning("no server took the weights: publishing again")

    def _published(self, policy: Policy, state: TrainerState) -> bool:
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
        """Whether servers are gone or restarted; if all are, wait for one. Rank 0 only."""
        fleet, before = self.fleet, len(self.fleet.absent)
        for engine in fleet.present:
            self._lost(engine)
        if len(fleet.absent) == before:
            return False
        if self._held is None:
            fleet.gather()
        fleet.wait(self.look)
        return True

    def look(self) -> None:
        """Give servers that came back, or restarted, the current weights; rank 0 only.

        Raises:
            PublishFailed: all have been absent for too long.
        """
        if self._held is None or not self.fleet.lock.acquire(blocking=False):
            return  # before the first publish, or in one
        try:
            self.fleet.follow(self.fleet)
            call_all(self.engines, self._look_at)
            self.fleet.check()
        finally:
            self.fleet.lock.release()

    def _lost(self, engine: InferenceServer) -> str | None:
        """Leave out a server that is gone or restarted; return why."""
        why = None
        if not engine.http.is_ready():
            why = SILENT
        elif self._held and engine.version() != str(self._held[0]):
            why = "restarted with other weights"
        if why is not None:
            self.fleet.leave_out([(engine.url, ServerGone(why))])
        return why

    def _look_at(self, engine: InferenceServer) -> None:
        assert self._held is not None
        version, staged = self._held
        lost = self._lost(engine)
        if lost == SILENT or lost is None and engine.url not in self.fleet.absent:
            return
        engine.pause()
        if lost and staged is None:
            engine.label(version)
        elif lost and not self.renews:
            return  # it stays paused until the next publish
        elif lost:
            self.load(engine, str(staged), version)
        if engine.version() == str(version):
            engine.resume()
            self.fleet.take_back(engine)

    def stage(self, policy: Policy, state: TrainerState) -> Path | None:
        """Prepare the weights while servers generate; their path, if any. Collective."""
        raise NotImplementedError

    def apply(self, policy: Policy, staged: Path | None, version: int) -> bool:
        """Load the staged weights on every server; all are paused. Collective.

        False: a server was left out, and the others need all steps again.
        """

        def load() -> None:
            self.fleet.load(lambda e: self.load(e, str(staged), version), self.retries)

        run_on_rank0(policy.world, load)
        return True

    def load(self, engine: InferenceServer, path: str, version: int) -> None:
        """Load the staged weights on one server."""
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
        if self._announce is not None:
            self._announce(version)
        return True


class Keeper:
    """A thread that calls :meth:`Publisher.look` every few seconds; without servers it does nothing."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.problem: AtroposError | None = None  # that ended it
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
            try:
                self._publisher.look()
            except AtroposError as error:  # raised in the loop at its next wait
                self.problem = error

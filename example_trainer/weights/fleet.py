"""Publish steps on all servers at once, and the handling of failures of servers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from atroposlib.errors import InferenceError, PublishFailed
from example_trainer.distributed.collectives import run_on_rank0
from example_trainer.model.model_dir import TrainerState, is_tied
from example_trainer.model.policy import Policy
from example_trainer.settings.config import TrainingConfig
from example_trainer.weights.engines import InferenceServer

logger = logging.getLogger(__name__)
T = TypeVar("T")
Announce = Callable[[int], None]  # sends a version to the rollout API
Failure = tuple[str, object]  # URL of a server, and what it raised or did wrong
MAX_PARALLEL_SERVERS = 64
# Added to the two waits in which a server may be paused and unchanged: until the
# slowest server has finished its requests, and until the timeout is lifted.
WATCHDOG_SLACK_S = 60.0
AFTERWARDS = (
    "Mend or remove the server, then start the trainer again; POST /resume lets a server"
    " generate with what it holds."
)


class Fleet:
    """All servers, called concurrently."""

    def __init__(self, engines: Sequence[InferenceServer], timeout_s: float) -> None:
        self.engines = engines
        self._watchdog_s = 2 * timeout_s + WATCHDOG_SLACK_S

    def pause(self) -> None:
        """Pause all servers, and only then lift the timeout after which they resume.

        If the trainer dies before that, the servers resume on their own (where they
        can). After that, only a trainer, or a person who has checked their weights,
        resumes them.

        Raises:
            PublishFailed: one does not pause; none was touched, so the others go on.
        """
        for bound in ((self._watchdog_s,), ()):
            failed = failures(self.engines, lambda engine: engine.pause(*bound))
            if failed:
                call_all(self.engines, lambda engine: engine.resume())
                raise PublishFailed(
                    f"could not pause {len(failed)} of {len(self.engines)} servers:"
                    f" {_lines(failed)}. No server was touched; those that answer go on with"
                    f" what they hold. {AFTERWARDS}"
                )

    def load(self, action: Callable[[InferenceServer], None], retries: int = 0) -> None:
        """Change the weights of every server.

        Args:
            retries: times to repeat it where it failed; ``action`` must allow that.

        Raises:
            PublishFailed: one could not; all that answer stay paused.
        """
        failed = failures(self.engines, action)
        for _ in range(retries):
            urls = [url for url, _ in failed]
            failed = failures([e for e in self.engines if e.url in urls], action)
        if failed:
            raise self.half_updated("load", failed)

    def verify(self, version: int) -> None:
        """Raise PublishFailed unless every server reports this version."""
        answers = call_all(self.engines, lambda engine: engine.version())
        wrong = [
            (engine.url, answer if _is_error(answer) else f"it names version {answer!r}")
            for engine, answer in zip(self.engines, answers)
            if answer != str(version)
        ]
        if wrong:
            raise self.half_updated(f"verify version {version} on", wrong)

    def resume(self) -> None:
        """Resume generation on every server.

        Raises:
            PublishFailed: one does not; the others hold the same version and go on.
        """
        failed = failures(self.engines, lambda engine: engine.resume())
        if failed:
            raise PublishFailed(
                f"could not resume {len(failed)} of {len(self.engines)} servers:"
                f" {_lines(failed)}. All hold the new version and the others generate."
                f" {AFTERWARDS}"
            )

    def pause_all(self) -> list[str]:
        """Pause every server that still answers; returns the URLs of those that do not."""
        return [url for url, _ in failures(self.engines, lambda engine: engine.pause())]

    def half_updated(self, stage: str, failed: Sequence[Failure]) -> PublishFailed:
        """Pause a fleet that may hold several versions and return the error to raise."""
        silent = self.pause_all()
        held = call_all(self.engines, lambda engine: engine.version())
        named = ", ".join(
            f"{engine.url} {'is silent' if _is_error(v) else f'holds version {v!r}'}"
            for engine, v in zip(self.engines, held)
        )
        return PublishFailed(
            f"could not {stage} {len(failed)} of {len(self.engines)} servers:"
            f" {_lines(failed)}. Every server that answers stays paused"
            f"{' (silent: ' + ', '.join(silent) + ')' if silent else ''}; {named}."
            f" {AFTERWARDS}"
        )


def call_all(
    engines: Sequence[InferenceServer], action: Callable[[InferenceServer], T]
) -> list[T | InferenceError]:
    """Return the result or the exception of every engine, called concurrently."""

    def one(engine: InferenceServer) -> T | InferenceError:
        try:
            return action(engine)
        except InferenceError as error:
            return error

    if not engines:
        return []
    with ThreadPoolExecutor(min(len(engines), MAX_PARALLEL_SERVERS)) as pool:
        return list(pool.map(one, engines))


def _is_error(answer: object) -> bool:
    return isinstance(answer, InferenceError)


def failures(
    engines: Sequence[InferenceServer], action: Callable[[InferenceServer], object]
) -> list[Failure]:
    """Call every engine concurrently; return the URL and the error of those that failed."""
    answers = call_all(engines, action)
    return [(e.url, answer) for e, answer in zip(engines, answers) if _is_error(answer)]


def _lines(failed: Sequence[Failure]) -> str:
    return "; ".join(f"{url}: {what}" for url, what in failed)


class Publisher:
    """Publishes the weights of a policy to all servers, in the order of the package.

    Every rank has one; only rank 0 has the servers. Subclasses implement how weights are
    staged and loaded.
    """

    retries = 0  # of a load that failed

    def __init__(
        self,
        cfg: TrainingConfig,
        engines: Sequence[InferenceServer],
        announce: Announce | None,
    ) -> None:
        self.engines = engines
        self.cfg = cfg
        self.fleet = Fleet(engines, cfg.publish_timeout_s)
        self._announce = announce

    @property
    def publishes_start(self) -> bool:
        """Whether servers answer environments only after the first publish."""
        return False

    def publish(self, policy: Policy, state: TrainerState) -> None:
        """Make every server hold ``state.version``. Collective: every rank calls it.

        Raises:
            PublishFailed: names the server and its error; see the package.
            CheckpointError: nothing could be staged; no server was touched.
        """
        world = policy.world
        if self.cfg.debug_loading and world.is_rank0:
            for name, tensor in policy.model.state_dict().items():
                logger.info(f"publishing {name} {tuple(tensor.shape)}")
        staged = self.stage(policy, state)
        run_on_rank0(world, self.fleet.pause)
        self.apply(policy, staged, state.version)
        run_on_rank0(world, lambda: self._finish(state.version))
        if world.is_rank0:
            self.tidy()

    def stage(self, policy: Policy, state: TrainerState) -> Path | None:
        """Prepare the weights while servers generate; their path, if any. Collective."""
        raise NotImplementedError

    def apply(self, policy: Policy, staged: Path | None, version: int) -> None:
        """Load the staged weights on every server; all are paused. Collective."""

        def load() -> None:
            self.fleet.load(lambda e: self.load(e, str(staged), version), self.retries)

        run_on_rank0(policy.world, load)

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

    def _finish(self, version: int) -> None:
        self.fleet.verify(version)
        self.fleet.resume()
        if self._announce is not None:
            self._announce(version)

"""Evaluations during ``serve``: when one is due, one at a time, and of which weights."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from atroposlib.envs.rollout import pacing
from atroposlib.envs.runtime.env_runtime import EnvRuntime
from atroposlib.errors import AtroposError, boundary
from atroposlib.wire import EnvStatus

logger = logging.getLogger(__name__)


class Evaluations:
    """The evaluation under way and the step whose weights are to be evaluated next."""

    def __init__(self, env: EnvRuntime, policy_version: Callable[[], int]) -> None:
        self._env = env
        self._policy_version = policy_version
        self.task: asyncio.Task[None] | None = None
        self.due: int | None = None

    def start_if_due(self, status: EnvStatus) -> None:
        """Start the one that is due, once the servers hold the weights it is about."""
        if self.task is not None and self.task.done():
            self.task = None
        if self.due is None or self.task is not None:
            return
        if pacing.weights_have_settled(
            self.due, self._env.curr_step, status.policy_version, status.queue_size
        ):
            step, self.due = self.due, None
            self.task = asyncio.ensure_future(self.evaluate(step))
            self._env.eval_runner = self.task

    async def evaluate(self, step: int) -> None:
        """Evaluate the weights of ``step``. A failure is logged and counted; the run goes on."""
        env = self._env
        before = self._policy_version()
        env.measured_at = lambda: {
            "eval_step": step,
            "eval_policy_version": before,
            "eval_policy_version_at_end": self._policy_version(),
        }
        try:
            with boundary(env.label(), f"step {step}", "evaluate"):
                await env.evaluate()
        except AtroposError as error:
            # Training data does not depend on it, so the run goes on; the failure is seen.
            logger.error("%s", error, exc_info=error)
            env.logbook.emit({"eval/failed": 1}, env.curr_step)
        finally:
            env.pool.changed.set()

    async def at_the_end(self, weights_of: Callable[[int], Awaitable[None]]) -> None:
        """Finish the one under way and do the last one; ``weights_of`` waits for its weights."""
        env = self._env
        if self.task is not None:
            await self.task
        if env.config.eval_at_end or self.due is not None:
            await weights_of(env.curr_step)
            await self.evaluate(env.curr_step)

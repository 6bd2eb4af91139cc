"""Inference servers of an environment that serves: the directory followed, their names checked."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from atroposlib.client import AsyncRolloutClient
from atroposlib.envs.runtime.env_runtime import EnvRuntime
from atroposlib.envs.runtime.waits import Shutdown, Waits
from atroposlib.envs.settings.config import STATUS_POLL_S
from atroposlib.errors import ConfigError, InferenceUnavailable
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.generation.engines.openai import TokenServer
from atroposlib.utils.gathering import gather_or_cancel

logger = logging.getLogger(__name__)


class ServerWatch:
    """Checks the model of each server at its first answer, even before any rollout calls."""

    def __init__(
        self, runtime: EnvRuntime, client: AsyncRolloutClient, shutdown: Shutdown
    ) -> None:
        self._runtime = runtime
        self._client = client
        self._shutdown = shutdown
        self._checks: list[asyncio.Future[None]] = []

    def begin(self) -> None:
        """Check the servers of the settings."""
        if not self._runtime.server.use_proxy:
            self._checks.append(
                asyncio.ensure_future(self._check(self._runtime.server.servers))
            )

    async def refresh(self) -> None:
        """Follow the directory, if the settings name it; an absent API changes nothing."""
        runtime = self._runtime
        if runtime.server.template is None or (listed := await self._client.servers()) is None:
            return
        if new := await runtime.server.follow(listed):
            for server in new:
                if isinstance(server, TokenServer):
                    await server.require_tokenizer(
                        runtime.tokenizer, runtime.config.tokenizer_name
                    )
            self._checks = [check for check in self._checks if not check.done()]
            self._checks.append(asyncio.ensure_future(self._check(new)))
        runtime.count_workers()

    async def wait_for_one(self, waits: Waits, bound_s: float) -> None:
        """Wait until a server takes part.

        Raises:
            InferenceUnavailable: no server did within ``bound_s``.
        """
        server, started = self._runtime.server, time.monotonic()
        while server.template is not None and not (server.servers or server.use_proxy):
            what = "an inference server that takes part, in the directory of the rollout API"
            waits.start("server", what)
            if time.monotonic() - started > bound_s:
                raise InferenceUnavailable(f"gave up after {bound_s:.0f} s: waited for {what}")
            await self._shutdown.pause(STATUS_POLL_S)
        waits.clear("server")

    async def close(self) -> None:
        """Cancel the checks."""
        for task in self._checks:
            task.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)

    async def _check(self, servers: Sequence[APIServer]) -> None:
        try:
            await gather_or_cancel(
                server._parts.health.wait_until_healthy() for server in servers
            )
        except ConfigError as error:
            self._shutdown.fail(error)
        except InferenceUnavailable as error:
            logger.debug("%s", error)  # rollouts wait for the server

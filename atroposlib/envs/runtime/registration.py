"""Joining a run of the rollout API, and joining again after a restart or a reset."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from atroposlib.client import AsyncRolloutClient
from atroposlib.envs.runtime.env_runtime import EnvRuntime
from atroposlib.envs.runtime.metrics_logger import open_wandb
from atroposlib.envs.runtime.sender import Sender
from atroposlib.envs.runtime.shutdown import Stopping
from atroposlib.errors import NotRegistered
from atroposlib.wire import EnvIdentifier, EnvRegistered, RegisterEnv

logger = logging.getLogger(__name__)
ASK_AGAIN_S = 0.5  # while the trainer has not started
REFRESH_S = (
    5.0  # how often is asked what a batch is: a trainer may come back with another size
)


def identity_of(registration: EnvRegistered) -> EnvIdentifier:
    """Who calls. APIs of the original's kind have no run id."""
    return EnvIdentifier(env_id=registration.env_id, run_id=registration.run_id or None)


class Membership:
    """Which run an environment belongs to; ``say`` is told what is waited for."""

    def __init__(
        self,
        env: EnvRuntime,
        client: AsyncRolloutClient,
        stopping: Stopping,
        say: Callable[[str], None],
    ) -> None:
        self._env = env
        self._client = client
        self._stopping = stopping
        self._say = say
        self._joining = asyncio.Lock()
        self._refresh_at = 0.0  # monotonic

    async def join_first(self) -> None:
        """Wait for the API and the trainer, register, and get ready to send.

        Raises:
            NotRegistered: no trainer started within ``trainer_timeout_s``.
            RolloutApiUnavailable: the API stayed away longer than ``api_timeout_s``.
        """
        env = self._env
        registration = await self._register()
        env.sender = Sender(
            self._client,
            registration,
            env.tally,
            group_size=env.config.group_size,
            rejoin=self.rejoin,
            take_back=env.pool.backlog.append,
        )
        if env.config.use_wandb:
            await self._open_wandb()
        if env.curr_step > 0:
            env.load_checkpoint()

    async def rejoin(self, stale: EnvRegistered) -> EnvRegistered:
        """Register again, once for all who hold ``stale``, and return what is valid now."""
        async with self._joining:  # every send under way notices at the same time
            env = self._env
            if env.registration is not stale:
                return env.registration
            logger.warning("the rollout API does not know %s: joining again", stale.wandb_name)
            fresh = await self._register()
            if fresh.run_id != stale.run_id:
                # What still generates began under the old run's weights and versions.
                env.pool.backlog.extendleft(reversed(env.pool.cancel_unfinished()))
            if env.sender is not None:
                env.sender.registration = fresh
            return fresh

    async def refresh(self) -> None:
        """Follow a trainer that registered again with batches of another size or length.

        Raises:
            ConfigError: a group does not fit into a batch any more.
        """
        if time.monotonic() < self._refresh_at:
            return
        self._refresh_at = time.monotonic() + REFRESH_S
        info = await self._client.info()
        self._env.take_sizes(info["batch_size"], info["max_token_len"])

    async def _register(self) -> EnvRegistered:
        env, config = self._env, self._env.config
        request = RegisterEnv(
            max_token_length=config.max_token_length,
            desired_name=env.label(),
            weight=config.inference_weight,
            group_size=config.group_size,
            min_batch_allocation=config.min_batch_allocation,
        )
        begun = time.monotonic()
        while True:
            asked = self._client.register_env(request)
            registration = await self._stopping.unless_asked(asked)
            if registration is not None:
                break
            waited = time.monotonic() - begun
            self._say(
                f"the trainer to start, {waited:.0f} s of at most {config.trainer_timeout_s:.0f} s"
            )
            if waited > config.trainer_timeout_s:
                raise NotRegistered(
                    f"no trainer started within {waited:.0f} s at {config.rollout_server_url}"
                )
            await self._stopping.pause(ASK_AGAIN_S)
        info = await self._stopping.unless_asked(self._client.info())
        env.join(registration, info["batch_size"], info["max_token_len"])
        self._refresh_at = time.monotonic() + REFRESH_S
        logger.info("%s joined run %s", registration.wandb_name, registration.run_id)
        return registration

    async def _open_wandb(self) -> None:
        env, info = self._env, await self._client.wandb_info()
        config = env.config.model_dump(mode="json")
        env.wandb_project, env.wandb_group = info.get("project"), info.get("group")
        sink = open_wandb(env.label(), env.wandb_project, env.wandb_group, config)
        if sink is not None:
            sink.prefix = f"{env.wandb_prepend}_"
            env.logbook.sinks.append(sink)

"""Registration at the rollout API: first, and again after a restart or a reset."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from atroposlib.client import AsyncRolloutClient
from atroposlib.envs.runtime.waits import Shutdown
from atroposlib.envs.settings.config import BaseEnvConfig
from atroposlib.errors import ConfigError, NotRegistered
from atroposlib.utils.command.startup import SEAT
from atroposlib.wire import EnvIdentifier, EnvRegistered, EnvSource, EnvStatus, RegisterEnv

logger = logging.getLogger(__name__)
TRAINER_POLL_S = 0.5  # while the trainer has not started
REFRESH_S = 5.0  # between reads of the batch size: a restarted trainer may change it


class JoinedRun:
    """The run as an environment sees it: registration, sizes, step, last status.

    ``config.batch_size`` and ``config.total_steps`` follow the trainer.
    """

    def __init__(self, label: Callable[[], str], config: Callable[[], BaseEnvConfig]) -> None:
        self.label = label
        self._config = config  # called for each use: an environment may replace its settings
        self._takes_steps: bool | None = None  # from the trainer; None: not joined yet
        self.registered: EnvRegistered | None = None
        self.status: EnvStatus | None = None
        self.status_dict: dict[str, Any] = {}  # the same for environments
        self.step = 0  # trainer steps; ``process``: groups kept
        self.max_token_len = -1  # tokens of a sequence; -1: unknown
        self.env_id: int | None = None
        self.name: str | None = None  # name of this environment in the run
        self.project: str | None = None
        self.group: str | None = None
        self.checkpoint_dir = ""
        self.checkpoint_interval = -1
        self.source_digest = ""  # code and data, as registered

    @property
    def config(self) -> BaseEnvConfig:
        """The settings of the environment."""
        return self._config()

    @property
    def registration(self) -> EnvRegistered:
        """The current registration. Raises NotRegistered: there is none."""
        if self.registered is None:
            raise NotRegistered(f"{self.label()} has not joined a run")
        return self.registered

    @property
    def identity(self) -> EnvIdentifier:
        """Number and run of this environment; APIs of the original's kind have no run id."""
        current = self.registration
        return EnvIdentifier(env_id=current.env_id, run_id=current.run_id or None)

    @property
    def policy_version(self) -> int:
        """The version that the servers held at the last status."""
        return self.status.policy_version if self.status else 0

    def join(
        self,
        registration: EnvRegistered,
        batch_size: int,
        max_token_len: int,
        source_digest: str = "",
    ) -> None:
        """Adopt what the run prescribes; a size of -1 is not prescribed.

        Raises ConfigError: no number of steps is set, or a group cannot fit into a batch.
        """
        self.resize(batch_size, max_token_len)
        if self._takes_steps is None:
            self._takes_steps = self.config.total_steps == -1
        if self._takes_steps:
            self.config.total_steps = registration.num_steps
        if self.config.total_steps < 0:
            raise ConfigError("total_steps is -1 here and at the trainer: set one of them")
        self.registered = registration
        self.env_id = registration.env_id
        self.name = registration.wandb_name
        self.checkpoint_dir = registration.checkpoint_dir
        self.checkpoint_interval = registration.checkpoint_interval
        self.step = registration.starting_step
        self.source_digest = source_digest

    def resize(self, batch_size: int, max_token_len: int) -> None:
        """Follow sequences per batch and tokens per sequence; -1 leaves the present value.

        Raises ConfigError: a group cannot fit into a batch.
        """
        config = self.config
        if batch_size != -1:
            config.batch_size = batch_size
        if max_token_len != -1:
            self.max_token_len = max_token_len
        if config.batch_size != -1 and config.group_size > config.batch_size:
            raise ConfigError(
                f"group_size {config.group_size} is more than the {config.batch_size} "
                "sequences of a batch: lower --env.group_size or raise the trainer's batch"
            )

    def follow(self, status: EnvStatus) -> None:
        """Adopt what the API last said of the run."""
        self.status = status
        self.status_dict = status.model_dump()

    def reach(self, step: int) -> None:
        self.step = step

    def name_records(self, project: str | None, group: str | None) -> None:
        """Adopt the trainer's names of the records in trackers."""
        self.project, self.group = project, group

    def work_alone(self) -> None:
        """Without a trainer the configured length bounds a sequence."""
        self.max_token_len = self.config.max_token_length


@dataclass
class RunRegistration:
    """Registers an environment and keeps ``run`` current."""

    run: JoinedRun
    client: AsyncRolloutClient
    shutdown: Shutdown
    waiting: Callable[[str], None]  # receives the wait reason
    new_run: Callable[[], None]  # called when the API has started another run since
    source: Callable[[], EnvSource] = EnvSource  # reads files
    _registering: asyncio.Lock = field(default_factory=asyncio.Lock)
    _refresh_at: float = 0.0  # monotonic

    async def register(self) -> EnvRegistered:
        """Wait for the API and the trainer, and join the run.

        Raises:
            NotRegistered: no trainer started within ``trainer_timeout_s``.
            RolloutApiUnavailable: the API was absent longer than ``api_timeout_s``.
        """
        config = self.run.config
        source = await asyncio.to_thread(self.source)
        request = RegisterEnv(
            max_token_length=config.max_token_length,
            desired_name=self.run.label(),
            weight=config.inference_weight,
            group_size=config.group_size,
            min_batch_allocation=config.min_batch_allocation,
            tokenizer=config.tokenizer_name,
            seat=os.environ.get(SEAT, ""),
            source=source,
        )
        started = time.monotonic()
        while True:
            call = self.client.register_env(request)
            registration = await self.shutdown.or_shutdown(call)
            if registration is not None:
                break
            waited, limit = time.monotonic() - started, config.trainer_timeout_s
            self.waiting(f"the trainer to start, {waited:.0f} s of at most {limit:.0f} s")
            if waited > limit:
                raise NotRegistered(
                    f"no trainer started within {waited:.0f} s at {config.rollout_server_url}"
                )
            await self.shutdown.pause(max(TRAINER_POLL_S, self.client.register_after_s))
        info = await self.shutdown.or_shutdown(self.client.info())
        self.run.join(registration, info["batch_size"], info["max_token_len"], source.digest)
        self._refresh_at = time.monotonic() + REFRESH_S
        logger.info("%s joined run %s", registration.wandb_name, registration.run_id)
        return registration

    async def re_register(self, stale: EnvRegistered) -> EnvRegistered:
        """Register again, once for all callers with ``stale``; return the current registration."""
        async with self._registering:  # all running sends fail at the same time
            if self.run.registration is not stale:
                return self.run.registration
            logger.warning("the rollout API does not know %s: joining again", stale.wandb_name)
            fresh = await self.register()
            if fresh.run_id != stale.run_id:
                self.new_run()
            return fresh

    async def refresh(self) -> None:
        """Follow a trainer that registered again with batches of another size or length.

        Raises ConfigError: a group does not fit into a batch any more.
        """
        if time.monotonic() < self._refresh_at:
            return
        self._refresh_at = time.monotonic() + REFRESH_S
        info = await self.client.info()
        self.run.resize(info["batch_size"], info["max_token_len"])

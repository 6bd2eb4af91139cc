"""Calls between the runtime, the environment and the command ``serve``."""

from __future__ import annotations

from typing import Any, Protocol

from atroposlib.envs.rollout.groups import ScoredDataGroup
from atroposlib.envs.rollout.pool import RolloutHooks
from atroposlib.envs.runtime.registration import RunRegistration
from atroposlib.envs.runtime.sender import GroupSender
from atroposlib.envs.settings.config import BaseEnvConfig
from atroposlib.generation.configs import ServerConfigs
from atroposlib.type_definitions import Item


class EnvHooks(RolloutHooks, Protocol):
    """The methods of ``BaseEnv`` that the runtime calls; ``base.py`` documents them."""

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, ServerConfigs]: ...

    async def env_manager(self) -> None: ...

    async def process_manager(self) -> int: ...

    async def setup(self) -> None: ...

    async def get_next_item(self) -> Item | None: ...

    async def evaluate(self, *args: Any, **kwargs: Any) -> Any: ...

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None: ...

    def load_checkpoint(self) -> None: ...

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None: ...

    async def add_rollouts_for_wandb(
        self, scored_data: ScoredDataGroup | list[ScoredDataGroup], item: Item | None = None
    ) -> None: ...


class Serving(Protocol):
    """The running ``serve`` command."""

    sender: GroupSender | None
    registration: RunRegistration

    async def register(self) -> None: ...

    async def open_trackers(self) -> None: ...

    async def read_status(self) -> None: ...

    async def step_checks(self) -> None: ...

    async def add_workers(self) -> None: ...

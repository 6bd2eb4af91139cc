"""What an environment is asked for: the hooks that ``base.py`` defines and the parts call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol

from atroposlib.envs.rollout.groups import ScoredDataGroup
from atroposlib.envs.settings.config import BaseEnvConfig
from atroposlib.generation.configs import ServerConfigs
from atroposlib.generation.engines.api_server import APIServer
from atroposlib.type_definitions import Item


class Serving(Protocol):
    """What ``serve`` does when a loop of an older environment asks for it by hook."""

    async def step_checks(self) -> None:
        """Evaluation, checkpoint and metrics that a new step makes due."""

    async def add_workers(self) -> None:
        """Start rollouts up to the number wanted."""


class MoreServers(NamedTuple):
    """Servers beside those of the trained model, such as a teacher's or a judge's."""

    argument: str  # the constructor's name for them
    defaults: ServerConfigs | None  # None: the environment can do without


class EnvHooks(ABC):
    """The class attributes and methods that an environment may replace."""

    name: str | None = None
    env_config_cls: type[BaseEnvConfig] = BaseEnvConfig
    server_cls: type[APIServer] = APIServer  # type: ignore[type-abstract]  # by server_type

    @classmethod
    def more_servers(cls) -> dict[str, MoreServers]:
        """By namespace of flags and file: ``{"teacher": ...}`` gives ``--teacher.<field>``."""
        return {}

    @classmethod
    @abstractmethod
    def config_init(cls) -> tuple[BaseEnvConfig, ServerConfigs]: ...

    @abstractmethod
    async def env_manager(self) -> None: ...

    @abstractmethod
    async def process_manager(self) -> int: ...

    @abstractmethod
    async def setup(self) -> None: ...

    @abstractmethod
    async def get_next_item(self) -> Item | None: ...

    @abstractmethod
    async def collect_trajectories(self, item: Item) -> tuple[Any, list[Item]]: ...

    @abstractmethod
    async def postprocess_histories(self, trajectories: Any) -> Any: ...

    @abstractmethod
    async def evaluate(self, *args: Any, **kwargs: Any) -> Any: ...

    @abstractmethod
    async def cleanup(self) -> None: ...

    @abstractmethod
    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> None: ...

    @abstractmethod
    def load_checkpoint(self) -> None: ...

    @abstractmethod
    async def wandb_log(self, metrics: dict[str, Any] | None = None) -> None: ...

    @abstractmethod
    async def add_rollouts_for_wandb(
        self, scored_data: ScoredDataGroup | list[ScoredDataGroup], item: Item | None = None
    ) -> None: ...

"""Local data of an environment of a function, which its runtime checks before any wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atroposlib.envs.function_env.data import DATA_OPTION, HUB
from atroposlib.envs.runtime.env_runtime import EnvRuntime
from atroposlib.envs.settings.config import BaseEnvConfig
from atroposlib.utils.datasets import require_path


class FunctionRuntime(EnvRuntime):
    """The runtime of an environment of a function."""

    @classmethod
    def local_data(cls, env_cls: Any, config: BaseEnvConfig) -> list[str | Path]:
        named = getattr(config, "dataset_path", None)
        paths = [path for path in [named] if isinstance(path, str | Path) and str(path)]
        return [*super().local_data(env_cls, config), *paths, *local_sources(env_cls)]

    @classmethod
    def require_data(cls, env_cls: Any, config: BaseEnvConfig) -> None:
        super().require_data(env_cls, config)
        if path := getattr(config, "dataset_path", None):
            require_path(path)
        for source in local_sources(env_cls):
            require_path(source, DATA_OPTION)


def local_sources(env_cls: Any) -> list[str | Path]:
    """The paths among the data sets of a definition."""
    definition = env_cls.definition
    return [
        source
        for source in (definition.dataset, definition.eval_dataset)
        if isinstance(source, (str, Path)) and not str(source).startswith(HUB)
    ]

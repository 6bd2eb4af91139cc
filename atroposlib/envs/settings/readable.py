"""Settings as the runtime reads them, whatever fields a subclass defines.

A subclass may define a field, a property or a method under the name of a setting that the
original does not have: then the name is the author's. The runtime reads the author's value if it
is valid for the setting, else the setting's default.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, cast

from pydantic import TypeAdapter, ValidationError

from atroposlib.envs.settings.config import BaseEnvConfig
from atroposlib.trackers import tracker_names


def readable(config: BaseEnvConfig) -> BaseEnvConfig:
    """``config``, or a view of it in which every setting has a value of its type."""
    names = foreign_names(type(config))
    return cast(BaseEnvConfig, SettingsView(config, names)) if names else config


@lru_cache(maxsize=256)
def foreign_names(config_cls: type[BaseEnvConfig]) -> frozenset[str]:
    """Names of ``BaseEnvConfig`` that ``config_cls`` defines with another type or kind."""
    names = set()
    for name, field in BaseEnvConfig.model_fields.items():
        own = config_cls.model_fields.get(name)
        if own is None or own.annotation != field.annotation or own.metadata != field.metadata:
            names.add(name)
    if config_cls.tracker_names is not BaseEnvConfig.tracker_names:
        names.add("tracker_names")
    return frozenset(names)


@lru_cache(maxsize=64)
def _adapter(name: str) -> TypeAdapter[Any]:
    field = BaseEnvConfig.model_fields[name]
    kind: Any = field.annotation
    for constraint in field.metadata:
        kind = Annotated[kind, constraint]
    return TypeAdapter(kind)


def recorded(config: BaseEnvConfig) -> dict[str, Any]:
    """``config`` as JSON for records: without API keys; what has no JSON form is its repr."""
    serializer = TypeAdapter(Any).serializer
    document = serializer.to_python(config.model_dump(), mode="json", fallback=repr)
    return cast(dict[str, Any], _without_keys(document))


def _without_keys(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_keys(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    return {name: _without_keys(entry) for name, entry in value.items() if name != "api_key"}


class SettingsView:
    """The settings of ``config``; values in ``names`` are checked. The remaining uses reach ``config``."""

    def __init__(self, config: BaseEnvConfig, names: frozenset[str]) -> None:
        vars(self).update(_config=config, _names=names)

    @property
    def tracker_names(self) -> list[str]:
        return tracker_names(self.trackers, self.use_wandb)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._config, name)
        if name not in self._names:
            return value
        try:
            return _adapter(name).validate_python(value)
        except ValidationError:
            return BaseEnvConfig.model_fields[name].get_default(call_default_factory=True)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._config, name, value)

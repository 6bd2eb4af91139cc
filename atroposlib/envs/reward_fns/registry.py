"""Registry of rewards: by name, or by a configuration with parameters.

A name that is not registered is compared with the modules of this package. Only a module
``<name>.py`` or ``<name>_reward.py`` is imported; it registers its reward under that name.
Any other name is a plug-in: MODULE:FUNCTION, FILE.py:FUNCTION or an entry point.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Union, overload

from atroposlib.envs.reward_fns.reward_function import RewardFunction
from atroposlib.errors import ConfigError
from atroposlib.settings.sentences import did_you_mean
from atroposlib.utils.command import plugins

PlainReward = Callable[..., Sequence[Union[float, None]]]
RewardClass = type[RewardFunction]
Entry = TypeVar("Entry", bound=Union[RewardClass, PlainReward])
PACKAGE = __name__.rpartition(".")[0]


class UnknownReward(ConfigError, ImportError):
    """There is no reward of this name; the message lists the known names."""


class LegacyFunctionWrapper(RewardFunction):
    """A plain function ``(completions, **columns) -> scores`` as a reward.

    ``kwargs`` are passed to every call; arguments of the call override ``kwargs``.
    """

    def __init__(
        self,
        func: PlainReward,
        weight: float = 1.0,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight, name or getattr(func, "__name__", None), **kwargs)
        self.func = func

    def compute(self, completions: Sequence[Any], **kwargs: Any) -> Sequence[float | None]:
        return self.func(completions, **{**self.config, **kwargs})


class RewardRegistry:
    """Rewards by name; ``reasoning_steps`` and ``reasoningsteps`` are the same name."""

    def __init__(self) -> None:
        self._entries: dict[str, RewardClass | PlainReward] = {}

    @overload
    def register(self, name: Entry) -> Entry: ...

    @overload
    def register(self, name: str | None = None) -> Callable[[Entry], Entry]: ...

    def register(self, name: Any = None) -> Any:
        """Decorator, plain or with a name; the default is the class name without "Reward"."""

        def decorate(decorated: Entry) -> Entry:
            self._add(chosen or _default_name(decorated), decorated)
            return decorated

        chosen = name if isinstance(name, str) else None
        return decorate if name is None or chosen else decorate(name)

    def register_function(self, name: str, function: PlainReward) -> None:
        """Register a plain function; :meth:`create` wraps it."""
        self._add(name, function)

    def get(self, name: str) -> RewardClass | PlainReward:
        """The class or function of ``name``. Raises UnknownReward: there is none."""
        entry = self._find(name)
        if entry is None:
            self._load(name)
            entry = self._find(name)
        if entry is None:
            entry = self._plugin(name)
        return entry

    def create(
        self, name_or_config: str | Mapping[str, Any], **defaults: Any
    ) -> RewardFunction:
        """A reward from its name, or from ``{"type": name, "params": {...}, ...}``.

        The entries of ``params`` and the other keys are arguments of the reward; both
        override ``defaults``.

        Raises:
            UnknownReward: there is no reward of this name.
            ConfigError: the configuration has no type, or arguments the reward does not take.
        """
        config = name_or_config
        settings: dict[str, Any] = (
            {"type": config} if isinstance(config, str) else dict(config)
        )
        name = settings.pop("type", None)
        if not isinstance(name, str):
            raise ConfigError(f"reward {config!r}: needs a 'type', the name of the reward")
        arguments = {**defaults, **settings.pop("params", {}), **settings}
        entry = self.get(name)
        try:
            if isinstance(entry, type):
                reward: RewardFunction = entry(**arguments)
                return reward
            arguments.setdefault("name", name)
            return LegacyFunctionWrapper(entry, **arguments)
        except TypeError as error:
            raise ConfigError(f"reward {name!r}: {error}") from error

    def list_registered(self) -> list[str]:
        """Names registered so far; rewards of the package register at their first use."""
        return sorted(self._entries)

    def load_required_functions(self, config: Any) -> None:
        """Load every reward that ``config`` names, so that a wrong name fails at the start.

        Args:
            config: a name, a reward's configuration, a list of names and configurations, or a
                mapping or object with that list in ``reward_functions``. Rewards inside
                ``combined`` count.
        """
        if isinstance(config, str):
            self.get(config)
        elif isinstance(config, (list, tuple)):
            for entry in config:
                self.load_required_functions(entry)
        elif isinstance(config, Mapping):
            if "type" in config:
                self.get(config["type"])
            inner = config.get("params") or {}
            for value in (config.get("reward_functions"), config.get("rewards"), inner):
                if value:
                    self.load_required_functions(value)
        elif not isinstance(config, RewardFunction):
            self.load_required_functions(getattr(config, "reward_functions", []))

    def _add(self, name: str, entry: RewardClass | PlainReward) -> None:
        # A module of this package never replaces a caller's reward of the same name. Between
        # callers the later registration wins.
        ours = str(getattr(entry, "__module__", "")).startswith(f"{PACKAGE}.")
        if not (ours and name in self._entries):
            self._entries[name] = entry

    def _find(self, name: str) -> RewardClass | PlainReward | None:
        if name in self._entries:
            return self._entries[name]
        squashed = {_squash(known): entry for known, entry in self._entries.items()}
        return squashed.get(_squash(name))

    def _plugin(self, name: str) -> RewardClass | PlainReward:
        known = {*self._entries, *_names()}
        try:
            plugins.target_of(plugins.REWARD, name, known)
        except ConfigError as error:
            hint = did_you_mean(name, known)
            listed = ", ".join(sorted(known))
            text = f"no reward {name!r}{hint}; there are {listed}; or write {plugins.FORMS}"
            raise UnknownReward(text) from error
        return plugins.load_plugin(plugins.REWARD, name)

    def _load(self, name: str) -> None:
        for module, offered in _modules().items():
            if _squash(name) in (_squash(module), _squash(offered)):
                importlib.import_module(f"{PACKAGE}.{module}")


def _default_name(entry: Any) -> str:
    name = str(entry.__name__).lower()
    return (name.removesuffix("reward") or name) if isinstance(entry, type) else name


def _squash(name: str) -> str:
    return name.lower().replace("_", "")


def _modules() -> dict[str, str]:
    """Modules of this package, with the reward name of each."""
    folder = str(Path(__file__).parent)
    names = (module.name for module in pkgutil.iter_modules([folder]))
    return {name: name.removesuffix("_reward") for name in names}


def _names() -> list[str]:
    return [name for module, name in _modules().items() if module != name]


registry = RewardRegistry()
